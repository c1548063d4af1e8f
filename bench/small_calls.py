#!/usr/bin/env python3
"""Short sequences and tiny calls: Attune beside PyTorch's scaled_dot_product_attention, one thread.

Both are called from Python with the same tensors, in pairs back to back in random order; all cases
take turns. A ratio is torch's time over ours, the median of the pairs: above 1, ours is faster. The
time is that of the thread, not of the clock on the wall, so that other work on the machine counts
less. Both results are compared before anything is timed.

  bench/small_calls.py                 the table
  bench/small_calls.py --rounds 200    narrower
  bench/small_calls.py --only 16x8     cases whose name has this text
  bench/small_calls.py --json FILE     also as JSON
"""

import argparse
import json
import random
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "python")]
import find_python  # noqa: E402

find_python.need("torch", "numpy")
import attune  # noqa: E402
import torch  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention as torch_sdpa  # noqa: E402

SAMPLE_SECONDS = 0.001  # calls are repeated until a sample is this long


def cases():
    """{name: (tensors, keywords)}"""
    generator = torch.Generator().manual_seed(0)

    def qkv(*shape):
        return [torch.randn(*shape, generator=generator) for _ in range(3)]

    short = (1, 8, 16, 64)
    keep = torch.rand(16, 16, generator=generator) < 0.7
    keep.fill_diagonal_(True)
    table = {f"16x8x{s}x64": (qkv(16, 8, s, 64), {}) for s in (4, 8, 16, 32, 64)}
    table["1x1x1x64"] = qkv(1, 1, 1, 64), {}
    table["1x8x16x64"] = qkv(*short), {}
    table["1x8x16x64 causal"] = qkv(*short), {"is_causal": True}
    table["1x8x16x64 bool mask"] = qkv(*short), {"attn_mask": keep}
    table["1x8x16x64 float mask"] = qkv(*short), {"attn_mask": torch.where(keep, 0.5, -2.0)}
    table["1x8x16x64 scale"] = qkv(*short), {"scale": 0.3}
    table["8x16x64 (3-D)"] = qkv(*short[1:]), {}
    return table


def seconds(call, tensors, keywords, repeats):
    begin = time.thread_time()
    for _ in range(repeats):
        call(*tensors, **keywords)
    return (time.thread_time() - begin) / repeats


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = {name: case for name, case in cases().items() if options.only in name}
    sides = {"ours": attune.scaled_dot_product_attention, "torch": torch_sdpa}
    repeats, times = {}, {}
    for name, (tensors, keywords) in table.items():
        results = [call(*tensors, **keywords) for call in sides.values()]
        torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)
        warm = max(seconds(call, tensors, keywords, 20) for call in sides.values())
        repeats[name] = max(1, round(SAMPLE_SECONDS / warm))
        times[name] = {side: [] for side in sides}
    dice = random.Random(0)
    for _ in range(options.rounds):
        for name in dice.sample(list(table), len(table)):
            for side in dice.sample(list(sides), 2):
                times[name][side].append(seconds(sides[side], *table[name], repeats[name]))
    rows = []
    print("| case | ours, us | torch, us | ratio |\n| --- | --- | --- | --- |")
    for name, samples in times.items():
        ratios = [b / a for a, b in zip(samples["ours"], samples["torch"], strict=True)]
        ours, peer = (1e6 * statistics.median(samples[side]) for side in ("ours", "torch"))
        rows.append({"case": name, "ours_us": ours, "torch_us": peer})
        rows[-1]["ratio"] = statistics.median(ratios)
        print(f"| {name} | {ours:.2f} | {peer:.2f} | {rows[-1]['ratio']:.2f} |")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
