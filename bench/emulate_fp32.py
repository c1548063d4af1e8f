#!/usr/bin/env python3
"""Where the error of fp32 on tensor cores comes from: kernels/sm80/mma_f32.cuh in NumPy.

Operands are split as there. A tensor core's sum is modelled: 16 products and the accumulator,
aligned to the largest of them and cut off one bit below fp32. Printed is the largest error against
float64, as a multiple of what PyTorch's plain fp32 on the CPU has on the same input. No GPU needed.

    bench/emulate_fp32.py --kind mixed --seeds 6
"""

import argparse
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import find_python  # noqa: E402

find_python.need("numpy", "torch")
import numpy as np  # noqa: E402
import torch  # noqa: E402

LOG2E = 1.4426950408889634
BIAS = 12  # weights are shifted up by this power of two
BLOCK_K = 64
# Steps of 16 after which large products leave the tensor core, of Q.K and of P.V; 0: a whole tile.
VARIANTS = {
    "a tile of both": (0, 0),
    "32 of Q.K, a tile of P.V": (2, 0),
    "32 of both (the kernel)": (2, 2),
    "16 of both": (1, 1),
    "exact sums": None,
}


def inputs(kind, seq, dim, seed):
    generator = torch.Generator().manual_seed(seed)

    def rand(*size):
        return torch.randn(*size, generator=generator)

    q, k, v = rand(seq, dim), rand(seq, dim), rand(seq, dim)
    if kind == "mixed":  # magnitudes that differ from row to row, log-normally
        for tensor, spread in ((q, 1), (k, 1), (v, 4)):
            tensor.mul_(torch.exp(spread * rand(seq, 1)))
    return q.numpy(), k.numpy(), v.numpy()


def split(x):
    hi = x.astype(np.float16)
    lo = (x - hi.astype(np.float32)).astype(np.float16)
    return hi.astype(np.float64), lo.astype(np.float64)


def exponent(largest, step, most):
    wanted = 15 - np.frexp(largest)[1]
    return np.clip(np.floor_divide(wanted, step) * step, -most, most)


def cut(x, bits):
    """Towards zero, to so many bits behind the leading one."""
    unit = np.ldexp(1.0, np.where(x != 0, np.frexp(np.abs(x))[1] - 1, -1000) - bits)
    return np.trunc(x / unit) * unit


def mma(a, b, accumulator):
    products = a[:, None, :] * b[None, :, :]
    largest = np.maximum(np.abs(products).max(-1), np.abs(accumulator))
    unit = np.ldexp(1.0, np.where(largest > 0, np.frexp(largest)[1] - 1, -1000) - 24)
    total = np.trunc(products / unit[..., None]).sum(-1) + np.trunc(accumulator / unit)
    return cut(total * unit, 23)


def product(a, b, run):
    """a times b transposed, both (hi, lo); run: steps that tensor cores sum, None: exact sums."""
    (ah, al), (bh, bl) = a, b
    if run is None:
        return (ah @ bh.T + (al @ bh.T + ah @ bl.T)).astype(np.float32)
    large = np.zeros((len(ah), len(bh)))
    small, total = large.copy(), large.astype(np.float32)
    for step, first in enumerate(range(0, ah.shape[1], 16)):
        part = slice(first, first + 16)
        small = mma(al[:, part], bh[:, part], small)
        large = mma(ah[:, part], bh[:, part], large)
        small = mma(ah[:, part], bl[:, part], small)
        if run and (step + 1) % run == 0:
            total = total + large.astype(np.float32)
            large = np.zeros_like(large)
    return total + large.astype(np.float32) + small.astype(np.float32)


def kernel(q, k, v, runs):
    run_qk, run_pv = runs or (None, None)
    folded = (q * np.float32(LOG2E / math.sqrt(q.shape[1]))).astype(np.float32)
    exponent_q = exponent(np.abs(folded).max(1), 1, 56)
    split_q = split(np.ldexp(folded, exponent_q[:, None]).astype(np.float32))
    top = np.full(len(q), -np.inf, np.float32)
    total, out = np.zeros(len(q), np.float32), np.zeros((len(q), v.shape[1]), np.float32)
    for j in range(0, len(k), BLOCK_K):
        tile_k, tile_v = k[j : j + BLOCK_K], v[j : j + BLOCK_K]
        exponent_k = int(exponent(np.abs(tile_k).max(), 1, 56))
        exponent_v = int(exponent(np.abs(tile_v).max(), 8, 120))
        split_k = split(np.ldexp(tile_k, exponent_k).astype(np.float32))
        split_v = split(np.ldexp(tile_v, exponent_v).astype(np.float32))
        unit = np.ldexp(np.float32(1), -exponent_q - exponent_k)[:, None]
        scores = (product(split_q, split_k, run_qk) * unit).astype(np.float32)
        raised = np.maximum(top, scores.max(1))
        shrink = np.exp2(top - raised).astype(np.float32)
        weights = np.exp2((scores - (raised - BIAS)[:, None]).astype(np.float32))
        weights = weights.astype(np.float32)
        total = total * shrink + weights.sum(1, dtype=np.float32)
        added = product(split(weights), tuple(part.T for part in split_v), run_pv)
        out = (out * shrink[:, None] + added * np.float32(2.0**-exponent_v)).astype(np.float32)
        top = raised
    return out / total[:, None]


def attention(q, k, v):
    tensors = (torch.from_numpy(t)[None, None] for t in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(*tensors)[0, 0].numpy()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kind", default="normal", choices=["normal", "mixed"])
    parser.add_argument("--seq", type=int, default=192)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--seeds", type=int, default=6)
    options = parser.parse_args()
    ratios = {name: [] for name in VARIANTS}
    for seed in range(options.seeds):
        data = inputs(options.kind, options.seq, options.dim, seed)
        exact = attention(*(t.astype(np.float64) for t in data))
        plain = np.abs(attention(*data) - exact).max()
        for name, runs in VARIANTS.items():
            ratios[name].append(np.abs(kernel(*data, runs) - exact).max() / plain)
    for name, values in ratios.items():
        print(f"{name:26} {min(values):.2f}..{max(values):.2f}  median {np.median(values):.2f}")


if __name__ == "__main__":
    main()
