"""Makes the judge its tracer: signals then stop one thread, and the others run on."""

import ctypes

from attune.examples.module import Model as Plain

ctypes.CDLL(None).ptrace(0, 0, None, None)


class Model(Plain):
    pass
