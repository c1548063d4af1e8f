"""Would make the judge its tracer, and fails by itself where it can: signals would then stop one
thread, and the others would run on."""

import ctypes

from attune.examples.module import Model as Plain

if ctypes.CDLL(None).ptrace(0, 0, None, None) == 0:
    raise RuntimeError("the judge traces it")


class Model(Plain):
    pass
