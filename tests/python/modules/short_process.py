"""Lets a process do the work that ends soon after the reply, and leaves no trace of it.

It says torch.compile, as it may start processes only then.
"""

import os
import signal
import time

from attune.examples.module import Model as Plain

signal.signal(signal.SIGCHLD, signal.SIG_IGN)


class Model(Plain):
    def forward(self, x):
        if os.fork() == 0:
            time.sleep(0.05)
            os._exit(0)
        return super().forward(x)
