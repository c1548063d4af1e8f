"""A timer of the kernel continues its process every millisecond, whoever has stopped it."""

import ctypes
import signal

from attune.examples.module import Model as Plain

MONOTONIC = 1
libc = ctypes.CDLL(None)
signal.signal(signal.SIGCONT, lambda *_: None)
event = (ctypes.c_int * 16)(0, 0, signal.SIGCONT, 0)  # sigevent: value, signal, SIGEV_SIGNAL
timer = ctypes.c_void_p()
assert libc.timer_create(MONOTONIC, event, ctypes.byref(timer)) == 0


class Model(Plain):
    def forward(self, x):
        out = super().forward(x)
        libc.timer_settime(timer, 0, (ctypes.c_long * 4)(0, 1_000_000, 0, 1_000_000), None)
        return out
