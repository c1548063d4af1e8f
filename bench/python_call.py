#!/usr/bin/env python3
"""What a call costs from Python: ours beside torch's scaled_dot_product_attention, wall time a call
in loops of many, synchronised at the end of a loop; on the CPU also the library's own function with
everything prepared, which is what C++ gets. And the self-attention module of attune.evaluate beside
eager, SDPA and torch.compile. On a GPU a small call takes as long as the host does, and the verdict
is whether ours takes at most 0.6 of SDPA's time.

  bench/python_call.py [--device cuda] [--shape 1x8x512x64 ...] [--loops 15] [--json FILE]
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import find_python  # noqa: E402

find_python.need("torch")
import torch  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
import attune  # noqa: E402
from attune import _judge_child, _library, _timing, evaluate  # noqa: E402
from report import print_bars  # noqa: E402

HOST_SHARE = 0.6  # of SDPA's host time, that a call of ours may take
HOST_SHAPE = "1x8x128x64"  # so small that the GPU waits for the host


def verdicts(result):
    """Bars of the parts that a GPU waited for: (bar, measured, reached)."""
    bars = []
    for part, rows in result.items():
        us = {row["name"]: row["us"] for row in rows}
        if part != f"calls {HOST_SHAPE}" or "sdpa" not in us or "library" in us:
            continue  # the CPU computes by itself, and its time is no host time
        for name in ("attune", "attune.attention"):
            share = us[name] / us["sdpa"]
            bars.append(
                {
                    "bar": f"{part}, {name}: at most {HOST_SHARE} of SDPA's host time",
                    "measured": f"{share:.3f}",
                    "reached": share <= HOST_SHARE,
                }
            )
    return bars


def rows_of(samples, baseline):
    rows = []
    for name, seconds in samples.items():
        mid, low, high = _timing.ratio(samples[baseline], seconds)
        rows.append(
            {
                "name": name,
                "us": 1e6 * statistics.median(seconds),
                "ratio": mid,
                "interval": [low, high],
            }
        )
    return rows


def calls(shape, options, device):
    batch, heads, seq, dim = (int(n) for n in shape.split("x"))
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    q, k, v = (torch.randn(batch, heads, seq, dim, device=device).to(dtype) for _ in range(3))
    names = {
        "sdpa": lambda: scaled_dot_product_attention(q, k, v),
        "attune": lambda: attune.scaled_dot_product_attention(q, k, v),
        "attune.attention": lambda: attune.attention(q, k, v),
    }
    baseline = "sdpa"
    if device.type == "cpu":
        library = _library.load()
        out = torch.empty_like(q)
        args = library.args(q, k, v, out, threads=torch.get_num_threads())
        names["library"] = lambda: library.forward(args)
        baseline = "library"
    samples = _timing.take_turns(
        names,
        device,
        options.loops,
        options.sample_seconds,
        calls_a_sample=1000 if device.type == "cuda" else None,
    )
    return rows_of(samples, baseline)


class WithSdpa(torch.nn.Module):
    """The baseline's layer with torch's own fused attention."""

    def __init__(self, plain):
        super().__init__()
        self.plain = plain

    def forward(self, x):
        batch, length, width = x.shape
        heads = self.plain.n_head
        q, k, v = (
            t.view(batch, length, heads, width // heads).transpose(1, 2)
            for t in self.plain.c_attn(x).split(width, dim=2)
        )
        out = scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.plain.c_proj(out.transpose(1, 2).reshape(batch, length, width))


def modules(options, device):
    settings = evaluate.parse(["--device", str(device)])
    sizes = {k: getattr(settings, k) for k in ("n_embd", "n_head", "max_seqlen")}
    plain, ours = (
        _judge_child.load_model(path, sizes, device)
        for path in (evaluate.BASELINE, evaluate.OPTIMISED)
    )
    _judge_child.set_weights(ours, plain.state_dict())
    x = torch.randn(settings.batch, settings.seq, settings.n_embd, device=device)
    models = {"eager": plain, "sdpa": WithSdpa(plain), "attune": ours}
    if device.type == "cuda":
        models["torch.compile"] = torch.compile(WithSdpa(plain))
    names = {name: lambda model=model: model(x) for name, model in models.items()}
    return rows_of(_timing.take_turns(names, device, options.loops), "eager")


def main():
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default=default)
    parser.add_argument("--shape", nargs="+", default=["1x8x512x64", HOST_SHAPE])
    parser.add_argument("--loops", type=int, default=15)
    parser.add_argument(
        "--sample-seconds", type=float, default=0.02, help="a loop's length on the CPU"
    )
    parser.add_argument(
        "--json",
        metavar="FILE",
        nargs="?",
        const="-",
        help="write the result as JSON; alone or with -: to stdout, instead of the text",
    )
    options = parser.parse_args()
    device = torch.device(options.device)
    with torch.no_grad():
        result = {f"calls {shape}": calls(shape, options, device) for shape in options.shape}
        result["modules"] = modules(options, device)
    for part, rows in result.items():
        if options.json == "-":
            break
        print(part)
        for r in rows:
            low, high = r["interval"]
            print(
                f"  {r['name']:<18} {r['us']:>10.2f} us  {r['ratio']:.3f} ({low:.3f}..{high:.3f})"
            )
    bars = verdicts(result)
    if options.json != "-":
        print_bars(bars, sys.stdout)
    text = json.dumps(result | {"bars": bars}, indent=2) + "\n"
    if options.json == "-":
        sys.stdout.write(text)
    elif options.json:
        Path(options.json).write_text(text)


if __name__ == "__main__":
    main()
