"""The shared library as a process sees it: loaded, used by many threads, closed."""

import subprocess
import sys
from pathlib import Path

LIBRARY = Path(__file__).resolve().parents[2] / "build" / "libattune.so"


def test_the_code_stays_after_dlclose():
    """Threads of its pool wait in it, and memory of other threads is freed by it."""
    script = f"""
import _ctypes, ctypes
library = ctypes.CDLL({str(LIBRARY)!r})
library.attune_version()
_ctypes.dlclose(library._handle)
print("/libattune.so" in open("/proc/self/maps").read())
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.stdout == "True\n", result.stderr


def test_no_thread_local_variables():
    """Those of a library that dlopen loaded are made at a thread's first use of them. Where
    there is no memory for them, the C library ends the process."""
    result = subprocess.run(["readelf", "-lW", LIBRARY], capture_output=True, text=True, check=True)
    segments = [line.split()[0] for line in result.stdout.splitlines() if line.startswith("  ")]
    assert "LOAD" in segments
    assert "TLS" not in segments


def test_no_json_library():
    """A destructor of nlohmann-json allocates and may not throw: it ends the process."""
    assert b"nlohmann" not in LIBRARY.read_bytes()
