"""Never returns."""

import time

from attune.examples.module import Model as Plain


class Model(Plain):
    def forward(self, x):
        time.sleep(1000)
