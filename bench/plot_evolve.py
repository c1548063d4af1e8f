#!/usr/bin/env python3
"""Draws a run of `attune evolve`: every candidate's speed-up over the start, by time and rung.

bench/plot_evolve.py RUN.db[.gz] PICTURE.png   (without arguments: the README's picture)
"""

import argparse
import gzip
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import find_python  # noqa: E402

find_python.need("matplotlib")
import matplotlib  # noqa: E402

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
RUN = ROOT / "tests/evolve/data/h200_seed000.db.gz"
PICTURE = ROOT / "docs/images/evolve-h200.png"
COLOURS = {
    "naive": "#8c8c8c",
    "tiled": "#c98b2b",
    "fused": "#3a9d5d",
    "mma": "#2f6fb7",
    "wgmma": "#a03a8c",
}


def evidence_of(run):
    """What `attune report` says of the run database, as a dict."""
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "run.db"
        opened = gzip.open(run) if run.suffix == ".gz" else open(run, "rb")
        with opened as source, open(database, "wb") as copy:
            shutil.copyfileobj(source, copy)
        tool = ROOT / "build/attune"
        subprocess.run([tool, "report", folder], check=True, stdout=subprocess.DEVNULL)
        return json.loads((Path(folder) / "evidence.json").read_text())


def points_of(evidence):
    """(seconds, speed-up over the start, rung) of every candidate that was right."""
    families = [family["name"] for family in evidence["space"]["families"]]
    return [
        (c["at"], math.exp(c["outcome"]["fitness"]), families[c["proposal"]["genome"]["family"]])
        for c in evidence["candidates"]
        if c["outcome"]["ok"]
    ]


def final_speedup(evidence):
    """Of the winner over the start, in the final comparison: geometric mean over the shapes."""
    start, *_, winner = evidence["final"]["seconds"]
    logs = [
        math.log(statistics.median(a) / statistics.median(b))
        for a, b in zip(start, winner, strict=True)
    ]
    return math.exp(statistics.fmean(logs))


def draw(evidence, path):
    points = sorted(points_of(evidence))
    figure, axes = pyplot.subplots(figsize=(9, 3.8), dpi=120)
    for rung in dict.fromkeys(p[2] for p in points):
        mine = [p for p in points if p[2] == rung]
        axes.scatter(
            [p[0] for p in mine],
            [p[1] for p in mine],
            s=22,
            color=COLOURS.get(rung, "#444444"),
            label=rung,
            alpha=0.8,
            linewidths=0,
        )
    best = 0
    steps = [(at, best := max(best, speed)) for at, speed, _ in points]
    axes.step([s[0] for s in steps], [s[1] for s in steps], where="post", color="#222222", lw=1.2)
    axes.annotate(
        f"{final_speedup(evidence):.0f}× in the final comparison",
        (steps[-1][0], best),
        xytext=(-4, 6),
        textcoords="offset points",
        ha="right",
        fontweight="bold",
    )
    axes.set_yscale("log")
    axes.set_ylim(0.7, 2.5 * best)
    axes.set_xlabel("seconds of searching")
    axes.set_ylabel("speed-up over the start (log scale)")
    meta = evidence["meta"]
    axes.set_title(
        f"attune evolve on {meta['machine'].split(',')[0]}: {len(evidence['candidates'])} "
        f"candidates, {len(points)} of them right; one dot each, the line is the best so far",
        fontsize=9,
    )
    axes.legend(loc="lower right", frameon=False)
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Software": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", nargs="?", type=Path, default=RUN, help="run.db, or run.db.gz")
    parser.add_argument("picture", nargs="?", type=Path, default=PICTURE)
    arguments = parser.parse_args()
    if not arguments.run.is_file():
        sys.exit(f"plot_evolve.py: there is no file {arguments.run}")
    draw(evidence_of(arguments.run), arguments.picture)
    print(arguments.picture)


if __name__ == "__main__":
    main()
