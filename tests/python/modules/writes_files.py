"""Writes where it has no business, and says so by failing where that is possible."""

import os
import tempfile

from attune.examples.module import Model as Plain

with tempfile.TemporaryFile() as scratch:
    scratch.write(b"this is fine")
try:
    open(os.path.join(os.path.dirname(__file__), "written_by_a_module"), "w").close()
except PermissionError:
    pass
else:
    raise RuntimeError("a file was written")


class Model(Plain):
    pass
