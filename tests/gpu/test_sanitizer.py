"""compute-sanitizer over a small case of every kernel: no bad access, no race."""

import glob
import shutil
import subprocess

import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch", reason="./x setup installs torch")

RUNGS = ("naive", "tiled", "fused", "mma", "wgmma")
# Of the quick suite with seed 1, each a few cases of all dtypes: few rows and many keys (split
# among blocks, then combined); tiles with ragged edges; rows that are not contiguous nor aligned.
FILTERS = (".k1000", ".k257", ".q65.k65")
TOOLS = {
    "memcheck": "ERROR SUMMARY: 0 errors",
    "synccheck": "ERROR SUMMARY: 0 errors",
    "racecheck": "RACECHECK SUMMARY: 0 hazards",
}
# Of these the ones in 16 bits: racecheck takes fp32's notes on Hopper for a race (below).
SIXTEEN_BITS = {
    ".k1000": "16.b1.h1.q1.k1000",
    ".k257": "16.b1.h1.q129.k257",
    ".q65.k65": "16.b2.h4kv2.q65.k65",
}
SECONDS = 400


def find_sanitizer():
    places = sorted(glob.glob("/usr/local/cuda*/bin/compute-sanitizer"))
    places += sorted(glob.glob("/usr/local/cuda*/compute-sanitizer/compute-sanitizer"))
    return shutil.which("compute-sanitizer") or next(iter(places), None)


def check(tool, rung, text):
    command = [tool, "check", "--device", "cuda", "--suite", "quick", "--mode", rung]
    return [str(part) for part in (*command, "--filter", text, "--seed", "1")]


def run(command):
    return subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS
    )


@pytest.fixture(scope="module")
def sanitizer():
    found = find_sanitizer()
    if found is None:
        pytest.skip("compute-sanitizer is neither in PATH nor below /usr/local/cuda*")
    return found


@pytest.mark.parametrize("text", FILTERS)
@pytest.mark.parametrize("rung", RUNGS)
def test_kernels_are_clean(rung, text, tool, sanitizer):
    """All tools in one test: the first run, without them, also fills the cache of kernels."""
    if rung == "wgmma" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma needs compute capability 9.0")
    plain = run(check(tool, rung, text))
    assert plain.returncode == 0, plain.stdout
    for name, summary in TOOLS.items():
        hopper_race = rung == "wgmma" and name == "racecheck"
        cases = SIXTEEN_BITS[text] if hopper_race else text
        result = run([sanitizer, "--tool", name, *check(tool, rung, cases)])
        assert result.returncode == 0, f"{name}\n{result.stdout[-8000:]}"
        assert summary in result.stdout, f"{name}\n{result.stdout[-8000:]}"


CONFIG = "wgmma.wg4.bk64.st4.qb2.fl1.tu0.mx2.su2.ee4.sc{}.l216.pr32"
IN_TURN, BY_COUNTER = CONFIG.format(1), CONFIG.format(2)


@pytest.mark.parametrize("name", TOOLS)
@pytest.mark.parametrize(
    ("dtype", "config"), [("bf16", IN_TURN), ("bf16", BY_COUNTER), ("f32", None)]
)
def test_blocks_that_go_from_tile_to_tile_are_clean(dtype, config, name, tool, sanitizer):
    """More tiles than multiprocessors, which no case of the suite has; the bench calls nothing but
    the kernel."""
    command = [tool, "bench", "--device", "cuda", "--shape", "1x80x700x64", "--causal", "1"]
    command += ["--dtype", dtype, "--repeats", "1", "--min-time", "0.0001", "--json", "/dev/null"]
    command += ["--config", config] if config else []
    result = run([sanitizer, "--tool", name, *map(str, command)])
    if name == "racecheck" and dtype == "f32" and "Race reported" in result.stdout:
        pytest.xfail("fp32's notes come by bulk copies, which mbarriers order: docs/notes, hopper")
    assert result.returncode == 0, f"{name}\n{result.stdout[-8000:]}"
    assert TOOLS[name] in result.stdout, f"{name}\n{result.stdout[-8000:]}"
