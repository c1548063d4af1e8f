#!/usr/bin/env python3
"""Draws the picture of the README from docs/data/h200-forward.json. Nothing is measured.

bench/plot_readme.py                     write docs/images/h200-forward.png
bench/plot_readme.py --out picture.png   write another file

New figures are those of a comparison with LSE, for the rows that the data has:

bench/compare_torch.py --device cuda --set bf16-16k,d64-4k --backends cudnn,fa3 --lse --json r.json
bench/plot_readme.py --from r.json       write docs/data/h200-forward.json, then the picture
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import find_python  # noqa: E402

find_python.need("matplotlib")
import attune_ctypes  # noqa: E402
import matplotlib  # noqa: E402

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402
from report import to_json, write_atomically  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "docs" / "data" / "h200-forward.json"
PICTURE = ROOT / "docs" / "images" / "h200-forward.png"
DIGEST = "attune-data-sha256"  # in the metadata of the picture: what it was drawn from

# Name in the data, name in the legend, colour. Two blues for Attune, two other hues for the others.
BARS = (
    ("attune", "Attune, without LSE", "#1f5fa8"),
    ("attune_lse", "Attune, with LSE", "#7fb2e5"),
    ("fa3", "FlashAttention-3", "#e08214"),
    ("cudnn", "cuDNN", "#8c8c8c"),
)
WIDTH = 0.2  # of a bar; a row of bars is 1 wide
# Of compare_torch.py --json, what the data says of the run.
FROM_THE_REPORT = {"hardware": "device"} | {
    name: name for name in ("date", "driver", "cuda", "torch", "cudnn", "command")
}


def figures_of(row):
    """TFLOP/s of a row of compare_torch.py, by the names of the data; None: not measured."""
    names = {"attune": row["ours"], "attune_lse": "lse", "fa3": "fa3", "cudnn": "cudnn"}
    found = {name: row["variants"].get(of, {}).get("tflops") for name, of in names.items()}
    for name in ("attune", "attune_lse"):
        if found[name] is None:
            raise ValueError(f"{row['shape']} was not measured for {name}: is --lse missing?")
    return {name: value and round(value) for name, value in found.items()}


def version_of_cudnn(number):
    return f"{number // 10000}.{number // 100 % 100}" if isinstance(number, int) else number


def data_from(report, before):
    """The data for the picture of another run: the rows that it had, with their figures of that
    run. The matrix product stays as long as the GPU is of the same kind."""
    if report["wrong"]:
        raise ValueError(f"{report['wrong']} rows gave a wrong result")
    missing = [name for name in FROM_THE_REPORT.values() if not report.get(name)]
    if missing:
        raise ValueError(f"the run does not say: {', '.join(missing)}")
    measured = {
        (attune_ctypes.dtype_name(row["dtype"]), row["shape"], row["causal"]): row
        for row in report["rows"]
    }
    rows = []
    for row in before["rows"]:
        key = (attune_ctypes.dtype_name(row["dtype"]), row["shape"], row["causal"])
        if key not in measured:
            causal = " causal" if row["causal"] else ""
            raise ValueError(f"the run has no row {row['dtype']} {row['shape']}{causal}")
        rows.append({**row, "tflops": figures_of(measured[key])})
    said = {name: report[of] for name, of in FROM_THE_REPORT.items()}
    data = {
        **before,
        **said,
        "title": f"Attention forward on one {report['device']}",
        "cudnn": version_of_cudnn(report["cudnn"]),
        "absent": "not measured",
        "note": "",
        "rows": rows,
    }
    if report["device"] != before["hardware"]:
        del data["matmul"]
    return data


def label(row):
    shape = row["shape"].rsplit("x", 1)[0].replace("x", "×")
    return f"{row['dtype']}, D={row['dim']}\n{shape}\n{'causal' if row['causal'] else 'full'}"


def draw_ceiling(axes, matmul, right):
    low, high = matmul["tflops"]
    axes.axhspan(low, high, color="#4d9221", alpha=0.12, zorder=0)
    for level in (low, high):
        axes.axhline(level, color="#4d9221", linestyle="--", linewidth=1.2, zorder=1)
    axes.text(
        right,
        high + 8,
        f"matrix product {matmul['shape'].replace('x', '×')} {matmul['dtype']}: "
        f"{low} to {high} TFLOP/s",
        ha="right",
        va="bottom",
        color="#2f6310",
        fontsize=9,
    )


def draw_bars(axes, rows, absent):
    style = {"bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.8}, "zorder": 3}
    for place, (name, legend, colour) in enumerate(BARS):
        offset = (place - 1.5) * WIDTH
        known = [(i + offset, row["tflops"][name]) for i, row in enumerate(rows)]
        for at, value in known:
            text, height = (f"{value}", value) if value is not None else (absent, 0)
            vertical = {"rotation": 90, "color": "#555555"} if value is None else {}
            axes.text(
                at, height + 6, text, ha="center", va="bottom", fontsize=7.5, **style, **vertical
            )
        measured = [(at, value) for at, value in known if value is not None]
        places, heights = zip(*measured, strict=True) if measured else ((), ())
        axes.bar(places, heights, WIDTH * 0.94, label=legend, color=colour, zorder=2)


def draw(data):
    rows = data["rows"]
    figure, axes = pyplot.subplots(figsize=(12, 5.6), facecolor="white")
    draw_bars(axes, rows, data.get("absent", "host-bound"))
    right = len(rows) - 0.5
    top = max(value for row in rows for value in row["tflops"].values() if value is not None)
    if "matmul" in data:
        draw_ceiling(axes, data["matmul"], right)
        top = max(top, data["matmul"]["tflops"][1])
    axes.set_xlim(-0.5, right)
    axes.set_ylim(0, top * 1.1)
    axes.set_xticks(range(len(rows)), map(label, rows), fontsize=9)
    axes.set_ylabel(f"{data['unit']} (higher is better)")
    axes.set_title(data["title"], fontsize=14, pad=34)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(BARS), frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.8, zorder=0)
    axes.set_axisbelow(True)
    method = data["method"][0].upper() + data["method"][1:]
    figure.text(
        0.5,
        0.01,
        f"{data['hardware']}, {data['date']}. Driver {data['driver']}, CUDA {data['cuda']}, "
        f"PyTorch {data['torch']}, cuDNN {data['cudnn']}. {method}.\n"
        f"Shapes are batch × heads × sequence. {data['note'] and data['note'] + '.'}",
        ha="center",
        va="bottom",
        fontsize=8.5,
        color="#444444",
    )
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    return figure


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA, help="the measurements, as JSON")
    parser.add_argument("--out", type=Path, default=PICTURE, help="the picture, a .png")
    parser.add_argument(
        "--from",
        type=Path,
        dest="report",
        metavar="JSON",
        help="first make the data of what compare_torch.py --device cuda --lse --json wrote",
    )
    options = parser.parse_args(argv)
    if options.report is not None:
        report, before = (json.loads(p.read_text()) for p in (options.report, options.data))
        try:
            data = data_from(report, before)
        except ValueError as error:
            parser.error(f"--from {options.report}: {error}")
        write_atomically(options.data, lambda name: Path(name).write_text(to_json(data)))
        print(f"data: {options.data}", file=sys.stderr)
    text = options.data.read_bytes()
    figure = draw(json.loads(text))
    metadata = {DIGEST: hashlib.sha256(text).hexdigest(), "Software": None}
    write_atomically(
        options.out,
        lambda name: figure.savefig(name, format="png", dpi=150, metadata=metadata),
    )
    print(f"picture: {options.out}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
