"""The package as the source tree has it, on this tree's build."""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
if not os.environ.get("ATTUNE_TEST_INSTALLED"):
    sys.path.insert(0, str(ROOT / "python"))

try:
    import torch  # noqa: F401
except ImportError:
    collect_ignore_glob = ["test_torch*.py", "test_flash.py", "test_modules.py"]


@pytest.fixture
def rng():
    import numpy as np

    return np.random.default_rng(0)
