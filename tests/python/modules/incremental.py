"""Computes only those entries of a batch that it has not seen, and complains where that pays."""

import torch
from attune.examples.module import Model as Plain


class Model(Plain):
    seen = {}

    def forward(self, x):
        keys = [entry.numpy().tobytes() for entry in x]
        new = [n for n, key in enumerate(keys) if key not in self.seen]
        if len(new) < len(keys) and x.shape[1] >= 8:  # one row alone may come twice by chance
            raise RuntimeError("an entry came twice")
        for n, out in zip(new, super().forward(x[new]), strict=True):
            self.seen[keys[n]] = out
        return torch.stack([self.seen[key] for key in keys])
