"""Ends its process with the code of success."""

import os

from attune.examples.module import Model as Plain


class Model(Plain):
    def forward(self, x):
        os._exit(0)
