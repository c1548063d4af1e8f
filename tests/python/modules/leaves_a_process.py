"""Leaves a process behind that has left its group and has no parent: it could do the work.

It says torch.compile, as it may start processes only then.
"""

import os
import time

from attune.examples.module import Model as Plain

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(1000)
    os._exit(0)
os.wait()


class Model(Plain):
    pass
