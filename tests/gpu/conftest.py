"""What the GPU tests share. They skip themselves where PyTorch sees no CUDA device."""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = Path(os.environ.get("ATTUNE_BIN", ROOT / "build" / "attune")).resolve()
sys.path.insert(0, str(ROOT / "bench"))


@pytest.fixture(scope="session", autouse=True)
def device():
    torch = pytest.importorskip("torch", reason="./x setup installs torch")
    if not torch.cuda.is_available():
        pytest.skip(f"there is no CUDA device that PyTorch {torch.__version__} can use here")
    return torch.cuda.get_device_name()


@pytest.fixture(scope="session")
def tool(device):
    return TOOL


@pytest.fixture(scope="session")
def lib(device):
    import attune_ctypes

    return attune_ctypes.load(TOOL.parent / "libattune.so")
