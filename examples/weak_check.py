#!/usr/bin/env python3
"""A check that looks reasonable and is not: what `attune judge` has to be stricter than.

    examples/weak_check.py examples/cpu_attention/weak.cpp    # passes
    build/attune judge examples/cpu_attention/weak.cpp        # refused

It compares five sampled elements with the definition, allows 5 % (and never less than 1e-4), and
draws inputs from -0.05 to 0.05, so that nothing overflows. With such inputs the scores are below
0.01, all weights are 1/n, and Q and K do not matter.
"""

import ctypes
import math
import random
import subprocess
import sys
import tempfile
from pathlib import Path


def weak_check(attention, samples=5, tolerance=0.05, batch=1, heads=2, seq_len=128, head_dim=64):
    """`attention(q, k, v, batch, heads, seq_len, head_dim)` takes and returns flat lists."""
    dice = random.Random(0)
    size = batch * heads * seq_len * head_dim
    q, k, v = ([dice.uniform(-0.05, 0.05) for _ in range(size)] for _ in range(3))
    out = attention(q, k, v, batch, heads, seq_len, head_dim)
    for _ in range(samples):
        at = dice.randrange(size)
        head = at // (seq_len * head_dim) * seq_len * head_dim
        row, d = at // head_dim * head_dim, at % head_dim
        keys = [head + j * head_dim for j in range(seq_len)]
        scores = [
            sum(q[row + c] * k[key + c] for c in range(head_dim)) / math.sqrt(head_dim)
            for key in keys
        ]
        weights = [math.exp(score - max(scores)) for score in scores]
        right = sum(w * v[key + d] for w, key in zip(weights, keys, strict=True)) / sum(weights)
        if not abs(out[at] - right) <= max(tolerance * abs(right), 1e-4):
            return False
    return True


def program(file, folder):
    """A C++ program of `run_attention` as a function."""
    library = Path(folder) / "program.so"
    command = ["g++", "-std=c++20", "-O2", "-fPIC", "-shared", str(file), "-o", str(library)]
    subprocess.run(command, check=True)
    loaded = ctypes.CDLL(str(library))

    def attention(q, k, v, batch, heads, seq_len, head_dim):
        floats = ctypes.c_float * len(q)
        out = floats()
        loaded.run_attention(
            floats(*q), floats(*k), floats(*v), out, batch, heads, seq_len, head_dim, False
        )
        return list(out)

    return attention


def main():
    if len(sys.argv) != 2 or not sys.argv[1].endswith(".cpp"):
        print(__doc__, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        passed = weak_check(program(sys.argv[1], folder))
    print(f"weak check: {'passed' if passed else 'failed'}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
