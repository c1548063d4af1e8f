"""Prints where the headers of this Python's torch lie. torch itself is not imported: that takes
seconds, and may fail for want of a GPU's libraries where headers are all that is asked for."""

import importlib.util
import re
import sys
from pathlib import Path

spec = importlib.util.find_spec("torch")
if spec is None or spec.origin is None:
    sys.exit("this Python has no torch")
folder = Path(spec.origin).parent
if not (folder / "include/torch/csrc/stable/library.h").exists():
    sys.exit(f"the torch in {folder} has no headers of the stable ABI")
version = re.search(r"__version__ = ['\"](\d+)\.(\d+)", (folder / "version.py").read_text())
if version is None or (int(version[1]), int(version[2])) < (2, 10):
    sys.exit(f"the torch in {folder} is older than 2.10")
print(folder / "include")
