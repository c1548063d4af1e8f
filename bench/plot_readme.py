#!/usr/bin/env python3
"""Draws the picture of the README from docs/data/h200-forward.json. Nothing is measured.

bench/plot_readme.py                     write docs/images/h200-forward.png
bench/plot_readme.py --out picture.png   write another file
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import find_python  # noqa: E402

find_python.need("matplotlib")
import matplotlib  # noqa: E402

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402
from report import write_atomically  # noqa: E402

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


def draw_bars(axes, rows):
    style = {"bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.8}, "zorder": 3}
    for place, (name, legend, colour) in enumerate(BARS):
        offset = (place - 1.5) * WIDTH
        known = [(i + offset, row["tflops"][name]) for i, row in enumerate(rows)]
        for at, value in known:
            text, height = (f"{value}", value) if value is not None else ("host-bound", 0)
            vertical = {"rotation": 90, "color": "#555555"} if value is None else {}
            axes.text(
                at, height + 6, text, ha="center", va="bottom", fontsize=7.5, **style, **vertical
            )
        measured = [(at, value) for at, value in known if value is not None]
        axes.bar(*zip(*measured, strict=True), WIDTH * 0.94, label=legend, color=colour, zorder=2)


def draw(data):
    rows = data["rows"]
    figure, axes = pyplot.subplots(figsize=(12, 5.6), facecolor="white")
    draw_bars(axes, rows)
    right = len(rows) - 0.5
    draw_ceiling(axes, data["matmul"], right)
    axes.set_xlim(-0.5, right)
    axes.set_ylim(0, data["matmul"]["tflops"][1] * 1.1)
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
        f"Shapes are batch × heads × sequence. {data['note']}.",
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
    options = parser.parse_args(argv)
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
