"""Leaves a process whose first thread has ended: its state is that of a process that is over.

It says torch.compile, as it may start processes only then.
"""

import ctypes
import os
import threading
import time

from attune.examples.module import Model as Plain

if os.fork() == 0:
    os.setsid()
    threading.Thread(target=time.sleep, args=(1000,)).start()
    ctypes.PyDLL(None).syscall(93 if os.uname().machine == "aarch64" else 60, 0)


class Model(Plain):
    pass
