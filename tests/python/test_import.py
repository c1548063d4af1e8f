"""`import attune` says what is wrong with its library."""

import os
import re
import shutil
import subprocess
import sys

import attune
import pytest


def why_not(folder):
    """The last line of a failed import with the library of a folder."""
    environment = {
        **os.environ,
        "ATTUNE_BUILD_DIR": str(folder),
        "PYTHONPATH": attune.__path__[0] + "/..",
    }
    done = subprocess.run(
        [sys.executable, "-c", "import attune"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


def test_no_library(tmp_path):
    said = why_not(tmp_path)
    assert said.startswith("ImportError: libattune.so.1 is neither in the package nor in a build")
    assert str(tmp_path) in said and "./x build" in said


def test_not_a_library(tmp_path):
    (tmp_path / "libattune.so.1").write_text("not a library")
    said = why_not(tmp_path)
    assert said.startswith("ImportError") and "cannot be loaded" in said and str(tmp_path) in said


@pytest.mark.parametrize(
    "code,words",
    [
        ("int attune_abi_version(void) { return 2; }", "has ABI 2, and this package needs 1"),
        ("int attune_abi_version(void) { return 1; }", "another version.*attune_"),
        ("int something(void) { return 1; }", "another version.*attune_abi_version"),
    ],
)
def test_another_version(tmp_path, code, words):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = ["-shared", "-fPIC", "-x", "c", "-", "-o", tmp_path / "libattune.so.1"]
    subprocess.run([compiler, *library], input=code, text=True, check=True)
    said = why_not(tmp_path)
    assert said.startswith("ImportError") and str(tmp_path) in said
    assert re.search(words, said), said
