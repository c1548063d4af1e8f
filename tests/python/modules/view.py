"""Gives back a view of its input."""

from attune.examples.module import Model as Plain


class Model(Plain):
    def forward(self, x):
        return x.view_as(x)
