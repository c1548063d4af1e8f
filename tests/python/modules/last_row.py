"""The last row of a long sequence is the one before it: a tail that was forgotten."""

from attune.examples.module import Model as Plain


class Model(Plain):
    def forward(self, x):
        out = super().forward(x)
        if x.shape[1] > 1:
            out[:, -1] = out[:, -2]
        return out
