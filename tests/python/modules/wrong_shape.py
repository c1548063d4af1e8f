"""Gives less than it is asked for."""

from attune.examples.module import Model as Plain


class Model(Plain):
    def forward(self, x):
        return super().forward(x)[:1, :1]
