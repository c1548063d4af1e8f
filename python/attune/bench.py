"""Speed and memory by sequence length: our rungs and torch's backends, in a table and a picture.

    python -m attune.bench [--seq 128,256,512] [--plot attention.png] [--json -]

All variants of a length take turns; each point is the median. Memory is what a call needs beyond
its inputs at its peak (where the system tells), so that the score matrix of the plain rungs shows.
"""

import argparse
import json
import re
import statistics
import sys
from pathlib import Path

import torch

from . import _library, _timing, _tool, sweep

LONGEST_QUADRATIC = 8192  # rungs that write the scores down are left out beyond this
QUADRATIC = ("baseline_math", "sdpa_math_only", "attune_naive", "attune_tiled")


def _resident_peak():
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


def extra_bytes(call, device):
    """The peak of a call above what was there before; None where it cannot be told."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = _resident_peak()
        call()
        return max(0, _resident_peak() - before)
    except (OSError, TypeError):
        return None


def measure(
    lengths, batch, heads, dim, dtype, device, causal=False, rounds=7, say=lambda text: None
):
    """Rows of {seq, name, ms, tflops, extra_mb}, in the order of lengths."""
    rows = []
    for length in lengths:
        say(f"{batch}x{heads}x{length}x{dim}")
        q, k, v = (
            torch.randn(batch, heads, length, dim, device=device).to(dtype) for _ in range(3)
        )
        calls, contexts, extra = {}, {}, {}
        for name, (function, context) in sweep.variants(device, causal).items():
            if length > LONGEST_QUADRATIC and name in QUADRATIC:
                continue

            def call(function=function, q=q, k=k, v=v):
                return function(q, k, v)

            try:
                with context():
                    call()
                    extra[name] = extra_bytes(call, device)
            except (RuntimeError, NotImplementedError):
                continue
            calls[name], contexts[name] = call, context
        samples = _timing.take_turns(calls, torch.device(device), rounds, contexts=contexts)
        work = 4 * batch * heads * length * length * dim / (2 if causal else 1)
        for name, seconds in samples.items():
            middle = statistics.median(seconds)
            rows.append(
                {
                    "seq": length,
                    "name": name,
                    "ms": 1e3 * middle,
                    "tflops": work / middle / 1e12,
                    "extra_mb": None if extra[name] is None else extra[name] / 2**20,
                }
            )
    return rows


def plot(rows, path, title=""):
    """Two pictures beside each other, speed and memory; PNG or SVG by the file's name."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (speed, memory) = pyplot.subplots(1, 2, figsize=(12, 4.8), layout="constrained")
    for name in dict.fromkeys(row["name"] for row in rows):
        own = [row for row in rows if row["name"] == name]
        style = "-o" if name.startswith("attune") else "--s"
        speed.plot([r["seq"] for r in own], [r["tflops"] for r in own], style, label=name, ms=4)
        some = [r for r in own if r["extra_mb"] is not None]
        memory.plot([r["seq"] for r in some], [max(r["extra_mb"], 0.01) for r in some], style, ms=4)
    for axes, label in ((speed, "TFLOP/s"), (memory, "memory beyond the inputs, MB")):
        axes.set(xlabel="sequence length", ylabel=label, xscale="log", yscale="log")
        axes.set_xscale("log", base=2)
        axes.grid(alpha=0.3)
    speed.legend(fontsize=8)
    figure.suptitle(title)
    figure.savefig(path)
    pyplot.close(figure)


def main(arguments=None):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser = argparse.ArgumentParser(
        prog="python -m attune.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seq", default="128,256,512,1024", help="lengths, with commas")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument(
        "--dtype",
        type=_library.dtype_name,
        default="f16" if device == "cuda" else "f32",
        choices=sweep.DTYPES,
    )
    parser.add_argument("--device", default=device, choices=["cpu", "cuda"])
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--plot", metavar="FILE", help="a .png or .svg")
    parser.add_argument(
        "--json",
        metavar="FILE",
        nargs="?",
        const="-",
        help="alone or with -: to stdout, instead of the table",
    )
    options = parser.parse_args(arguments)
    try:
        lengths = sorted({int(n) for n in options.seq.split(",")})
    except ValueError:
        parser.error(f"--seq {options.seq} is not a list of numbers")
    if min(*lengths, options.batch, options.heads, options.dim, options.rounds) < 1:
        parser.error("--seq, --batch, --heads, --dim and --rounds are at least 1")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU here")
    if options.plot and Path(options.plot).suffix not in (".png", ".svg"):
        parser.error(f"--plot {options.plot} is neither a .png nor a .svg")

    def say(text):
        if sys.stderr.isatty():
            print(text, file=sys.stderr)

    with torch.no_grad():
        rows = measure(
            lengths,
            options.batch,
            options.heads,
            options.dim,
            sweep.DTYPES[options.dtype],
            options.device,
            options.causal,
            options.rounds,
            say,
        )
    if options.json:
        text = json.dumps(rows, indent=2) + "\n"
        print(text, end="") if options.json == "-" else Path(options.json).write_text(text)
    if options.json != "-":
        print(f"{'seq':>7} {'variant':<18} {'ms':>10} {'TFLOP/s':>9} {'extra MB':>9}")
        for r in rows:
            extra = "-" if r["extra_mb"] is None else f"{r['extra_mb']:.1f}"
            print(f"{r['seq']:>7} {r['name']:<18} {r['ms']:>10.4f} {r['tflops']:>9.3f} {extra:>9}")
    if options.plot:
        what = f"{options.batch}x{options.heads}xSx{options.dim} {options.dtype}, {options.device}"
        plot(rows, options.plot, what + (", causal" if options.causal else ""))
        print(f"drawn into {options.plot}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    _tool.run(main)
