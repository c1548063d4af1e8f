"""A wheel, built from this tree, in an empty environment."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.full
ROOT = Path(__file__).resolve().parents[2]
GLIBC = (2, 36)  # what docs/python.md promises: Debian 12's
EXAMPLE = """
import numpy as np, attune
x = np.random.default_rng(0).standard_normal((1, 2, 9, 16)).astype(np.float32)
out = attune.attention(x, x, x, is_causal=True)
assert np.abs(out[0, 0, 0] - x[0, 0, 0]).max() < 1e-6
print(attune.__version__, attune.info()["torch"])
"""


def run(*command, **options):
    environment = {
        k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "ATTUNE_BUILD_DIR")
    }
    environment.update(options.pop("env", {}))
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, env=environment, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("scikit_build_core")
    folder = tmp_path_factory.mktemp("wheel")
    # The tool is the same program as in build/: what is tested here is the package around it.
    # By its long name: Debian 12's pip does not know -C yet.
    values = [f"build-dir={folder / 'build'}", "cmake.define.ATTUNE_BUILD_TOOL=OFF"]
    settings = [f"--config-settings={value}" for value in values]
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    run(*pip, *settings, "-w", folder, ROOT)
    (path,) = folder.glob("attune-*.whl")
    return path


def test_what_is_in_it(wheel, tmp_path):
    names = set(zipfile.ZipFile(wheel).namelist())
    for name in (
        "__init__.py",
        "libattune.so.1",
        "libhwy.so.1",
        "_torch_ops.so",
        "examples/module.py",
    ):
        assert f"attune/{name}" in names
    assert not [name for name in names if re.search(r"cuda|nvrtc|torch_cpu|\.cpp$", name)]
    zipfile.ZipFile(wheel).extractall(tmp_path)
    for library in (tmp_path / "attune").glob("*.so*"):
        versions = re.findall(rb"GLIBC_(\d+)\.(\d+)", library.read_bytes())
        assert max((int(a), int(b)) for a, b in versions) <= GLIBC, library.name


def test_without_torch(wheel, tmp_path):
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", wheel)
    assert "'usable': False" in run(python, "-c", EXAMPLE, cwd=tmp_path)
    code = "import attune; attune.flash_attn_func"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode != 0 and "torch" in done.stderr


def test_with_torch(wheel, tmp_path):
    pytest.importorskip("torch")
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", tmp_path, wheel)
    code = (
        EXAMPLE + "import torch; attune.scaled_dot_product_attention(*torch.ones(3, 1, 2, 9, 16))"
    )
    assert "'usable': True" in run(
        sys.executable, "-c", code, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}
    )
