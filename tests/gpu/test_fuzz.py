"""Random shapes and features, larger than the suites have, beside float64 on the GPU.

Longer, or one case again:  tests/gpu/test_fuzz.py --seconds 600
                            tests/gpu/test_fuzz.py --case 123456
"""

import argparse
import math
import random
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch", reason="./x setup installs torch")
compare_cuda = pytest.importorskip("compare_cuda")
attune_ctypes = compare_cuda.attune_ctypes

SECONDS = 60
SHAPES_A_KERNEL = 6  # consecutive cases differ in shape only, so that not all time is compilation
MOST_ELEMENTS = 1_000_000  # of Q
MOST_SCORES = 2**27
PLAIN_WORK = 2**31  # multiplications that the slow rungs are asked for at most
CANARY = 64  # elements
LSE_TOLERANCE = {"f32": 1e-5, "f16": 1e-4, "bf16": 1e-4}


@dataclass(frozen=True)
class Case:
    """One call; made from its number alone."""

    number: int
    dtype: str
    dim: int
    dim_v: int
    mode: str
    causal: bool
    bottom_right: bool
    window: tuple
    mask: str  # "", "bool", "same" (the inputs' dtype) or "f32"
    group: int
    layout: str  # "plain", "transposed" ([B,S,H,D] in memory) or "odd" (not aligned)
    batch: int = 1
    heads_kv: int = 1
    seq_q: int = 1
    seq_k: int = 1
    mask_heads: bool = False


def draw_kernel(number):
    dice = random.Random(number // SHAPES_A_KERNEL)
    dim = 8 * dice.randint(1, 32) if dice.random() < 0.8 else dice.randint(8, 256)
    windowed = dice.random() < 0.25
    dtype = dice.choice(["f32", "f16", "bf16"])
    dim_v = dim if dice.random() < 0.8 else 8 * dice.randint(1, 32)
    mode = dice.choices(["auto", "mma", "fused", "tiled", "naive"], [4, 2, 2, 1, 1])[0]
    if dtype == "f32" and mode == "mma" and dim_v > 192:  # which it refuses; auto knows
        mode = "auto"
    return Case(
        number=number,
        dtype=dtype,
        dim=dim,
        dim_v=dim_v,
        mode=mode,
        causal=dice.random() < 0.5,
        bottom_right=dice.random() < 0.5,
        window=(1, 1) if windowed else (-1, -1),
        mask=dice.choice(["bool", "same", "f32"]) if dice.random() < 0.35 else "",
        group=dice.choice([1, 1, 1, 2, 4, 8]),
        layout=dice.choices(["plain", "transposed", "odd"], [4, 2, 1])[0],
    )


def draw_case(number):
    kernel, dice = draw_kernel(number), random.Random(f"shape {number}")

    def length():
        return min(4096, int(2 ** dice.uniform(0, 12.1)))

    seq_q = 1 if dice.random() < 0.15 else length()
    seq_k = seq_q if seq_q > 1 and dice.random() < 0.5 else length()
    window = kernel.window
    if window != (-1, -1):
        window = (dice.randint(-1, seq_k), dice.randint(0, seq_k))
    each = kernel.group * seq_q * max(kernel.dim, kernel.dim_v)
    room = min(MOST_ELEMENTS // each, MOST_SCORES // (kernel.group * seq_q * seq_k))
    if kernel.mode in ("tiled", "naive"):
        work = kernel.group * seq_q * seq_k * (kernel.dim + kernel.dim_v)
        room = min(room, PLAIN_WORK // work)
    heads_kv = dice.randint(1, max(1, min(8, room)))
    return replace(
        kernel,
        window=window,
        seq_q=seq_q,
        seq_k=seq_k,
        heads_kv=heads_kv,
        batch=dice.randint(1, max(1, min(4, room // heads_kv))),
        mask_heads=dice.random() < 0.5,
    )


# --- data -----------------------------------------------------------------------------------------


def place(flat, offset, shape, layout):
    """A view [B,H,S,D] of flat memory."""
    batch, heads, seq, dim = shape
    inner = flat[offset : offset + math.prod(shape)]
    if layout == "transposed":
        return inner.view(batch, seq, heads, dim).transpose(1, 2)
    return inner.view(shape)


def make_tensors(case, generator):
    dtype = compare_cuda.DTYPES[case.dtype]
    offset = CANARY + (1 if case.layout == "odd" else 0)

    def tensor(heads, seq, dim, filled=True):
        shape = (case.batch, heads, seq, dim)
        flat = torch.full((math.prod(shape) + 2 * offset,), math.nan, dtype=dtype, device="cuda")
        view = place(flat, offset, shape, case.layout)
        if filled:
            view.copy_(torch.randn(shape, generator=generator, device="cuda"))
        return flat, view

    heads = case.group * case.heads_kv
    q = tensor(heads, case.seq_q, case.dim)[1]
    k = tensor(case.heads_kv, case.seq_k, case.dim)[1]
    v = tensor(case.heads_kv, case.seq_k, case.dim_v)[1]
    return q, k, v, *tensor(heads, case.seq_q, case.dim_v, filled=False)


def make_mask(case, generator):
    if not case.mask:
        return None
    heads = case.group * case.heads_kv if case.mask_heads else 1
    shape = (case.batch, heads, case.seq_q, case.seq_k)
    values = torch.randn(shape, generator=generator, device="cuda")
    if case.mask == "bool":
        return values > -0.5
    values.masked_fill_(values < -1.5, -math.inf)  # forbidden keys
    return values.to(compare_cuda.DTYPES[case.dtype if case.mask == "same" else "f32"])


# --- the reference --------------------------------------------------------------------------------


def allowed_keys(case):
    i = torch.arange(case.seq_q, device="cuda")[:, None]
    j = torch.arange(case.seq_k, device="cuda")[None, :]
    position = i + (case.seq_k - case.seq_q if case.bottom_right else 0)
    allowed = torch.ones(case.seq_q, case.seq_k, dtype=torch.bool, device="cuda")
    if case.causal:
        allowed &= j <= position
    left, right = case.window
    if left >= 0:
        allowed &= j >= position - left
    if right >= 0:
        allowed &= j <= position + right
    return allowed


def reference(case, q, k, v, mask):
    """out and lse in float64; a row without a key gives 0 and -inf."""
    k = k.double().repeat_interleave(case.group, dim=1)
    v = v.double().repeat_interleave(case.group, dim=1)
    scores = q.double() @ k.transpose(2, 3)
    scores *= 1 / math.sqrt(case.dim)
    if mask is not None and mask.dtype != torch.bool:
        scores += mask.double()
    elif mask is not None:
        scores.masked_fill_(~mask, -math.inf)
    scores.masked_fill_(~allowed_keys(case), -math.inf)
    lse = torch.logsumexp(scores, dim=-1)
    scores -= lse.masked_fill(lse == -math.inf, 0.0)[..., None]
    return scores.exp_() @ v, lse


def lse_objection(lse, expected, dtype):
    empty = expected == -math.inf
    if not torch.equal(lse == -math.inf, empty):
        return "lse is -inf in other rows than it must be"
    error = (lse.double() - expected).abs() / (1 + expected.abs())
    worst = error.masked_fill(empty, 0.0).max().item()
    return "" if worst <= LSE_TOLERANCE[dtype] else f"lse is off by {worst:.2e}"


def objection(lib, case):
    """Runs one case; says what is wrong with it, or ''."""
    generator = torch.Generator("cuda").manual_seed(case.number)
    q, k, v, flat, out = make_tensors(case, generator)
    mask = make_mask(case, generator)
    lse = torch.full(q.shape[:3], math.nan, device="cuda")
    alignment = "bottom_right" if case.bottom_right else "top_left"
    more = {} if mask is None else {"mask": mask}
    call = attune_ctypes.CudaCall(
        lib,
        q,
        k,
        v,
        out,
        lse=lse,
        mode=attune_ctypes.MODES[case.mode],
        causal=int(case.causal),
        alignment=attune_ctypes.ALIGNMENTS[alignment],
        window_left=case.window[0],
        window_right=case.window[1],
        **more,
    )
    call()
    expected, expected_lse = reference(case, q, k, v, mask)
    _, wrong = compare_cuda.compare(out, expected, case.dtype)
    wrong = wrong or lse_objection(lse, expected_lse, case.dtype)
    offset = CANARY + (1 if case.layout == "odd" else 0)
    if not wrong and not (flat[:offset].isnan().all() and flat[-offset:].isnan().all()):
        wrong = "memory around out was written to"
    if not wrong and not (out[expected_lse == -math.inf] == 0).all():
        wrong = "a row without a key is not 0"
    return wrong


def fuzz(lib, seconds, first):
    """Failures as text, and how many cases ran."""
    failures, ran = [], 0
    end = time.monotonic() + seconds
    while time.monotonic() < end and len(failures) < 5:
        case = draw_case(first + ran)
        try:
            wrong = objection(lib, case)
        except attune_ctypes.Error as error:
            wrong = str(error)
        if wrong:
            failures.append(
                f"{wrong}\n  {case}\n  again: tests/gpu/test_fuzz.py --case {case.number}"
            )
        ran += 1
    return failures, ran


def test_random_shapes(lib):
    first = random.SystemRandom().randrange(2**30)
    failures, ran = fuzz(lib, SECONDS, first)
    print(f"{ran} cases from {first} on")
    assert not failures, "\n".join(failures)
    assert ran >= 20


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--case", type=int, help="only this one")
    parser.add_argument("--library", default="build/libattune.so")
    options = parser.parse_args()
    lib = attune_ctypes.load(options.library)
    if options.case is not None:
        case = draw_case(options.case)
        wrong = objection(lib, case)
        print(case, wrong or "ok", sep="\n")
        return 1 if wrong else 0
    first = random.SystemRandom().randrange(2**30)
    failures, ran = fuzz(lib, options.seconds, first)
    print(*failures, f"{ran} cases from {first} on, {len(failures)} failures", sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
