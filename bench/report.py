"""What the comparisons share: statistics, the table of bars, JSON, and the chart."""

import json
import math
import os
import statistics
import sys
import tempfile
from pathlib import Path


def talk(text):
    print(text, file=sys.stderr, flush=True)


def progress(text):
    if sys.stderr.isatty():
        print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)


# --- statistics -----------------------------------------------------------------------------------


def geometric_mean(values):
    return math.exp(sum(math.log(v) for v in values) / len(values))


def error_of(out, expected, tolerance, dtype):
    """The largest error, and what is wrong: |out - expected| <= tolerance * (1 + |expected|)."""
    out = out.double()
    if not out.isfinite().all():
        return math.inf, "not finite"
    difference = (out - expected).abs()
    excess = (difference / (tolerance * (1 + expected.abs()))).max().item()
    error = difference.max().item()
    return error, "" if excess <= 1 else f"error {error:.2e} is {excess:.1f}x what {dtype} allows"


def median_interval(values):
    """The median, and the order statistics around it that cover it with at least 95 %.

    Below six values no pair of them does; then it is the whole range.
    """
    ordered = sorted(values)
    count = len(ordered)
    lowest, tail = 0, 0.0
    for k in range(count // 2):  # the chance that at most k of the values lie below the median
        tail += math.comb(count, k) / 2**count
        if tail > 0.025:
            break
        lowest = k
    return statistics.median(ordered), [ordered[lowest], ordered[count - 1 - lowest]]


# --- output ---------------------------------------------------------------------------------------


def print_bars(bars, out):
    if bars:
        print("| bar | measured | verdict |\n|:--|:--|:--|", file=out)
    for bar in bars:
        verdict = "pass" if bar["reached"] else "MISS"
        print(f"| {bar['bar']} | {bar['measured']} | {verdict} |", file=out)


def to_json(report):
    """Strict JSON, which has no NaN and no infinity: null stands for them."""

    def finite(value):
        if isinstance(value, dict):
            return {key: finite(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [finite(item) for item in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(finite(report), indent=2, allow_nan=False) + "\n"


def write_atomically(path, write):
    """write(file name) on a temporary name, then a rename: the file appears whole or not at all."""
    path = Path(path)
    if path.exists() and not path.is_file():  # a device or a pipe
        return write(str(path))
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=path.suffix)
    os.close(handle)
    try:
        write(temporary)
        mode = os.umask(0)
        os.umask(mode)
        os.chmod(temporary, 0o666 & ~mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def plot(rows, title, path):
    """A bar a row: its ratio to its peer, with the interval."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    labels = [
        f"{r['set']}: {r['shape']} {r['dtype']}{' causal' if r['causal'] else ''}"
        f"{' mask' if r['mask'] else ''} vs {r['peer']}"
        for r in rows
    ]
    ratios = [r["ratio"] for r in rows]
    below = [max(0.0, r["ratio"] - r["ci"][0]) for r in rows]
    above = [max(0.0, r["ci"][1] - r["ratio"]) for r in rows]
    colours = ["#4c78a8" if ratio >= 1 else "#e45756" for ratio in ratios]
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.28 * len(rows)))
    axes.barh(range(len(rows)), ratios, xerr=[below, above], color=colours, capsize=2)
    axes.set_yticks(range(len(rows)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xlabel("peer's time / ours, with 95 % interval (right of 1: ours is faster)")
    axes.set_title(title)
    figure.tight_layout()
    write_atomically(path, lambda name: figure.savefig(name, format="png", dpi=120))


def deliver(report, title, options, print_tables):
    """Writes what the options ask for: tables or JSON to stdout, the JSON file, the chart."""
    if options.json == "-":
        sys.stdout.write(to_json(report))
    else:
        print_tables(report, sys.stdout)
    if options.json and options.json != "-":
        write_atomically(options.json, lambda name: Path(name).write_text(to_json(report)))
    drawable = [row for row in report["rows"] if row["ratio"] is not None]
    if options.plot != "none" and drawable:
        plot(drawable, title, options.plot)
        talk(f"chart: {options.plot}")
    if report["wrong"]:
        talk(f"{report['wrong']} rows gave a wrong result")
    return 1 if report["wrong"] else 0


# --- the command line -----------------------------------------------------------------------------


def add_common_options(parser, root):
    parser.add_argument(
        "--build",
        type=Path,
        default=root / "build",
        help="folder of libattune.so and attune (default: build)",
    )
    parser.add_argument(
        "--json",
        metavar="FILE",
        nargs="?",
        const="-",
        help="write the result as JSON; alone or with -: to stdout, instead of the tables",
    )
    parser.add_argument(
        "--plot",
        metavar="FILE|none",
        help="where the bar chart (PNG) goes (default: compare_torch.png in the build folder)",
    )


def settle_common_options(parser, options):
    import importlib.util

    for name in ("libattune.so", "attune"):
        if not (options.build / name).exists():
            parser.error(f"{options.build / name} is missing: run ./x build, or say --build FOLDER")
    has_matplotlib = importlib.util.find_spec("matplotlib") is not None
    if options.plot not in (None, "none") and not has_matplotlib:
        parser.error("--plot: matplotlib is not installed")
    if options.plot is None:
        options.plot = str(options.build / "compare_torch.png") if has_matplotlib else "none"
