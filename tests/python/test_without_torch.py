"""What the package says where torch, or its ops, are missing: what to do about it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HIDE = """
import sys
class Hide:
    def find_spec(self, name, *rest):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, Hide())
"""


def run(code, build):
    environment = os.environ | {"PYTHONPATH": str(ROOT / "python"), "ATTUNE_BUILD_DIR": str(build)}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )


@pytest.fixture
def build_without_ops(tmp_path):
    (tmp_path / "libattune.so.1").symlink_to((ROOT / "build/libattune.so.1").resolve())
    return tmp_path


def test_no_torch_and_no_ops(build_without_ops):
    code = HIDE + "import attune; print(attune.info()['torch']['why'])"
    why = run(code, build_without_ops).stdout
    for word in ("pip install torch", "then install Attune again", "NumPy"):
        assert word in why
    refused = run(HIDE + "import attune; attune.flash_attn_func", build_without_ops)
    assert refused.returncode != 0 and "pip install torch" in refused.stderr


def test_no_torch_beside_ops(tmp_path):
    for name in ("libattune.so.1", "_torch_ops.so"):
        (tmp_path / name).symlink_to((ROOT / "build/libattune.so.1").resolve())
    why = run(HIDE + "import attune; print(attune.info()['torch']['why'])", tmp_path).stdout
    assert "pip install torch" in why and "again" not in why


def test_no_ops(build_without_ops):
    pytest.importorskip("torch")
    why = run("import attune; print(attune.info()['torch']['why'])", build_without_ops).stdout
    assert "no torch ops" in why and "then install Attune again" in why
