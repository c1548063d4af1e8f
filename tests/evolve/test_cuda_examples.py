"""The programs of examples/cuda_attention, run on the CPU: indices, layouts, barriers, copies."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent / "cuda_on_cpu"))
from cuda_on_cpu import build, definition, with_values  # noqa: E402

EXAMPLE = ROOT / "examples" / "cuda_attention"
TECHNIQUES = EXAMPLE / "catalogue" / "techniques.cu"
# batch, heads, seq_len, head_dim
SHAPES = [(1, 2, 77, 64), (2, 1, 150, 128), (1, 1, 1, 64), (1, 2, 33, 48), (1, 1, 130, 80)]

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")


def largest_error(attention, shape, causal, size):
    rng = np.random.default_rng(sum(shape))
    q, k, v = (rng.standard_normal(shape).astype(np.float16) for _ in range(3))
    q, k = q * np.float16(size), k * np.float16(size)
    out = attention(q, k, v, causal, seed=causal + 2 * size)
    return np.abs(out - definition(q, k, v, causal)).max()  # NaN where an element is not written


def check(text, folder, shapes=SHAPES):
    attention = build(text, folder)
    for shape in shapes:
        for causal in (False, True):
            # Logits of a few, and of more than 1e4.
            assert largest_error(attention, shape, causal, 1) < 4e-3, (shape, causal)
            assert largest_error(attention, shape, causal, 60) < 8e-3, (shape, causal)


def test_walk_of_flash_attention(tmp_path):
    text = (EXAMPLE / "catalogue" / "causal_skipping.cu").read_text()
    check(text, tmp_path, [(1, 2, 77, 64), (1, 1, 130, 80)])


def test_emulation_sees_what_is_missing(tmp_path):
    """A barrier or a wait taken out shows, or the tests here would show nothing."""
    text = (EXAMPLE / "catalogue" / "causal_skipping.cu").read_text()
    barrier = "    __syncthreads();  // the tile is there for all"
    wait = "    wait_for_copies();\n    __syncthreads();"
    assert barrier in text and wait in text
    for n, wrong in enumerate(
        (text.replace(barrier, "    //"), text.replace(wait, "    __syncthreads();"))
    ):
        attention = build(wrong, tmp_path, f"wrong{n}")
        assert not largest_error(attention, (1, 1, 200, 64), False, 1) < 4e-3


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLE.glob("catalogue/*.cu")))
def test_program(name, tmp_path):
    check((EXAMPLE / "catalogue" / f"{name}.cu").read_text(), tmp_path)


@pytest.mark.full
def test_naive(tmp_path):
    check((EXAMPLE / "naive.cu").read_text(), tmp_path, [(1, 2, 9, 64), (1, 1, 1, 16)])


@pytest.mark.full
@pytest.mark.parametrize(
    "off",
    [
        "TILING",
        "ONLINE_SOFTMAX",
        "TENSOR_CORES",
        "COALESCING",
        "DOUBLE_BUFFERING",
        "CAUSAL_SKIPPING",
        "LAZY_RESCALING",
        "TILING COALESCING ONLINE_SOFTMAX CAUSAL_SKIPPING",
        "TENSOR_CORES ONLINE_SOFTMAX COALESCING DOUBLE_BUFFERING CAUSAL_SKIPPING",
    ],
)
def test_techniques_without(off, tmp_path):
    text = with_values(TECHNIQUES.read_text(), **dict.fromkeys(off.split(), 0))
    check(text, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize(
    "sizes",
    [{"WARPS": 8}, {"ROWS_PER_WARP": 16, "BLOCK_K": 32}, {"BLOCK_K": 128, "ONLINE_SOFTMAX": 0}],
)
def test_techniques_in_other_sizes(sizes, tmp_path):
    check(with_values(TECHNIQUES.read_text(), **sizes), tmp_path, SHAPES[:2])


def library_program(rung, folder, head_dim=64):
    file = folder / f"library_{rung}.cu"
    maker = EXAMPLE / "make_library_program.py"
    command = [sys.executable, str(maker), rung, "--head-dim", str(head_dim), "-o", str(file)]
    subprocess.run(command, check=True)
    return file


@pytest.mark.parametrize("rung", ["mma", "wgmma"])
def test_library_program_is_one_file(rung, tmp_path):
    text = library_program(rung, tmp_path).read_text()
    block = text.split("// EVOLVE-BLOCK-START attention\n")[1].split("// EVOLVE-BLOCK-END\n")[0]
    assert '#include "' not in text
    assert f"{rung}_forward<kProblem<Causal>, kConfig<Causal>>" in block
    assert "launch_attention(" in block and "run_attention(" not in block


@pytest.mark.full
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("rung", ["mma", "wgmma"])
def test_library_program_compiles(rung, head_dim, tmp_path):
    """As the judge compiles it: without a warning, without spills."""
    file = library_program(rung, tmp_path, head_dim)
    command = ["nvcc", "-std=c++20", "-O3", "-arch=sm_90a", "-Xptxas", "-v", "-shared"]
    command += ["-Xcompiler", "-fPIC", "-cudart=shared", str(file), "-o", str(tmp_path / "a.so")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    spills = [line for line in done.stderr.splitlines() if "bytes spill" in line]
    assert len(spills) == 2 and all("0 bytes spill stores, 0" in line for line in spills)
    assert "warning" not in done.stderr
