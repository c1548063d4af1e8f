#!/usr/bin/env python3
"""Speed over head dimensions: a cell for each D, dtype, causality, batch and sequence length, ours
beside cuDNN (on the CPU: beside PyTorch's own attention), and the holes in that map.

A cell is measured as by compare_torch.py --device cuda: outputs are checked against float64 first,
both take turns in bursts with a flushed second-level cache, and the ratio is the median over the
rounds (above 1: ours is faster). All cells of a size have as many tiles of rows (16 heads), and
come in random order.

A hole is a cell at S={hole_seq} (where there is none: at the longest S) that is
- below {least_ratio} of the peer, or
- below {least_speed} of the TFLOP/s of the better of its neighbours in D, scaled by the padding
  that it cannot avoid: tensor cores take D in steps of 16 in the first product.

The JSON file is written as cells are measured. Where it exists already, a run goes on with what is
missing in it: a map may take several sittings.

Examples:
  bench/atlas.py --budget 1800 --json atlas.json --plot atlas.png
  bench/atlas.py --dims 64:136:8 --dtype bf16 --sizes 8x2048
  bench/atlas.py --lse --json atlas-lse.json
  bench/atlas.py --device cpu
"""

import argparse
import importlib.util
import json
import math
import random
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import find_python  # noqa: E402

find_python.need("torch")
import attune_ctypes  # noqa: E402
import compare_cuda as cuda  # noqa: E402
import torch  # noqa: E402
from cuda_rows import LSE, Row, flops  # noqa: E402
from report import progress, talk, to_json, write_atomically  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
HOLE_SEQ = 2048
LEAST_RATIO = 1.0
LEAST_SPEED = 0.85
HEADS = 16
CELL_SECONDS = 1.0
SAVE_SECONDS = 20.0
DEFAULTS = {
    "cuda": {"dims": "32:256:8", "dtype": "f16,bf16", "sizes": "8x2048,1x2048,32x512,2x8192"},
    "cpu": {"dims": "32:96:16", "dtype": "f32", "sizes": "1x256"},
}
PEER = {"cuda": "cudnn", "cpu": "sdpa"}
FEATURES = ("device", "version", "torch", "peer", "lse")  # what cells of one file have in common


# --- cells ----------------------------------------------------------------------------------------


def key_of(row):
    return f"{row.shape} {row.dtype}{' causal' if row.causal else ''}"


def cells_of(options, dice):
    """The rows, size after size."""
    rows = []
    for batch, seq in options.sizes:
        cells = [
            Row("atlas", f"{batch}x{HEADS}x{seq}x{dim}", dtype, causal)
            for dim in options.dims
            for dtype in options.dtypes
            for causal in options.causal
        ]
        dice.shuffle(cells)
        rows += cells
    return rows


def cpu_variant(lib, inputs, causal, lse):
    q, k, v, _ = inputs
    more = {"lse": torch.full(q.shape[:3], math.nan)} if lse else {}
    out = cuda.poisoned_output(q, v)
    variant = cuda.Variant(LSE if lse else "auto", lse=more.get("lse"))
    args = lib.args(q, k, v, out, causal=int(causal), threads=torch.get_num_threads(), **more)
    variant.kernel = lib.explain(args).get("chosen", "")

    def run():
        lib.forward(args)
        return out

    variant.run = run
    return variant


def cpu_peer(inputs, causal):
    q, k, v, _ = inputs
    return cuda.Variant("sdpa", run=lambda: scaled_dot_product_attention(q, k, v, is_causal=causal))


def variants_of(lib, row, inputs, options):
    """Ours, then the peer."""
    if options.device == "cpu":
        return [
            cpu_variant(lib, inputs, row.causal, options.lse),
            cpu_peer(inputs, row.causal),
        ]
    ours = LSE if options.lse else "auto"
    return [
        cuda.attune_variant(lib, ours, "auto", inputs, row.causal, lse=options.lse),
        cuda.cudnn_lse_variant(inputs, row.causal)
        if options.lse
        else cuda.torch_variant("cudnn", inputs, row.causal),
    ]


def cpu_burst(variant, _, calls):
    """compare_cuda.burst by the clock of the host."""
    seconds = []
    for _ in range(2 * calls):
        begin = time.perf_counter()
        variant.run()
        seconds.append(time.perf_counter() - begin)
    median = 1e6 * statistics.median(seconds[calls:])
    return median, median


def cell_of(lib, row, options, dice, flush):
    generator = torch.Generator(cuda.DEVICE).manual_seed(dice.randrange(2**31))
    inputs = cuda.make_inputs(row, generator)
    ours, peer = variants = variants_of(lib, row, inputs, options)
    wrong = cuda.check_variants(row, variants, inputs, dice)
    if not wrong:
        burst = cpu_burst if options.device == "cpu" else cuda.burst
        cuda.measure(variants, flush, CELL_SECONDS, options.rounds, dice, burst)
    batch, heads, _, seq, _, dim, _ = attune_ctypes.parse_shape(row.shape)

    def speed(variant):
        return flops(row) / statistics.median(variant.us) / 1e6 if variant.us else None

    return {
        "batch": batch,
        "heads": heads,
        "seq": seq,
        "dim": dim,
        "dtype": row.dtype,
        "causal": row.causal,
        "us": statistics.median(ours.us) if ours.us else None,
        "tflops": speed(ours),
        "peer_tflops": speed(peer),
        **(cuda.ratio_to(ours, peer) if ours.us and peer.us else {"ratio": None, "ci": None}),
        "refused": peer.refused,
        "kernel": ours.kernel,
        "wrong": wrong,
    }


# --- holes ----------------------------------------------------------------------------------------


def share_of(dim, device):
    """Of the products that tensor cores do for a head dimension, those that count."""
    if device == "cpu":
        return 1.0
    return 2 * dim / (math.ceil(dim / 16) * 16 + math.ceil(dim / 8) * 8)


def neighbours(cell, cells):
    """The nearest cells in D, below and above, that differ in nothing else."""
    same = [
        c
        for c in cells
        if c["tflops"] is not None
        and all(c[name] == cell[name] for name in ("batch", "seq", "dtype", "causal"))
    ]
    below = [c for c in same if c["dim"] < cell["dim"]]
    above = [c for c in same if c["dim"] > cell["dim"]]
    found = [max(below, key=lambda c: c["dim"])] if below else []
    return found + ([min(above, key=lambda c: c["dim"])] if above else [])


def expected_speed(cell, cells, device):
    """The TFLOP/s that its better neighbour promises; None where it has none."""
    promised = [
        c["tflops"] / share_of(c["dim"], device) * share_of(cell["dim"], device)
        for c in neighbours(cell, cells)
    ]
    return max(promised, default=None)


def hole_seq(cells):
    sizes = {c["seq"] for c in cells}
    return HOLE_SEQ if HOLE_SEQ in sizes else max(sizes, default=HOLE_SEQ)


def holes_of(cells, device):
    """Cells that fall behind the peer or their neighbours, with why."""
    at, found = hole_seq(cells), []
    for cell in cells:
        if cell["seq"] != at or cell["tflops"] is None:
            continue
        why = []
        if cell["ratio"] is not None and cell["ratio"] < LEAST_RATIO:
            why.append(f"{cell['ratio']:.3f} of the peer")
        promised = expected_speed(cell, cells, device)
        if promised is not None and cell["tflops"] < LEAST_SPEED * promised:
            part = cell["tflops"] / promised
            why.append(f"{part:.3f} of the {promised:.4g} TFLOP/s that its neighbour promises")
        if why:
            found.append({**cell, "why": "; ".join(why)})
    order = ("batch", "dtype", "causal", "dim")
    return sorted(found, key=lambda c: tuple(c[name] for name in order))


# --- output ---------------------------------------------------------------------------------------


def panels_of(cells):
    """{(dtype, causal): its cells}, in order."""
    panels = {}
    for cell in cells:
        panels.setdefault((cell["dtype"], cell["causal"]), []).append(cell)
    return dict(sorted(panels.items()))


def table_of(panel, value):
    """Sizes, dimensions, and a row of values a size; NaN where nothing was measured."""
    sizes = list(dict.fromkeys((c["batch"], c["seq"]) for c in panel))
    dims = sorted({c["dim"] for c in panel})
    table = [[math.nan] * len(dims) for _ in sizes]
    for cell in panel:
        if cell[value] is not None:
            table[sizes.index((cell["batch"], cell["seq"]))][dims.index(cell["dim"])] = cell[value]
    return sizes, dims, table


def heat_map(report, path):
    """Left the ratio to the peer, right our own speed; holes are crossed out."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = panels_of(report["cells"].values())
    holes = {(h["dtype"], h["causal"], h["batch"], h["seq"], h["dim"]) for h in report["holes"]}
    tallest = max(len(table_of(p, "ratio")[0]) for p in panels.values())
    figure, grid = pyplot.subplots(
        len(panels), 2, figsize=(18, (1.1 + 0.45 * tallest) * len(panels) + 0.6), squeeze=False
    )
    looks = {"ratio": ("RdYlGn", 0.7, 1.3), "tflops": ("viridis", 0, None)}
    for line, ((dtype, causal), panel) in zip(grid, panels.items(), strict=True):
        for axes, (value, (colours, low, high)) in zip(line, looks.items(), strict=True):
            sizes, dims, table = table_of(panel, value)
            image = axes.imshow(table, aspect="auto", cmap=colours, vmin=low, vmax=high)
            figure.colorbar(image, ax=axes, fraction=0.02, pad=0.01)
            axes.set_xticks(range(len(dims)), dims, fontsize=7, rotation=90)
            axes.set_yticks(range(len(sizes)), [f"{b} x {s}" for b, s in sizes], fontsize=8)
            what = f"times as fast as {report['peer']}" if value == "ratio" else "TFLOP/s"
            axes.set_title(f"{dtype}{', causal' if causal else ''}: {what}", fontsize=9)
            for y, (batch, seq) in enumerate(sizes):
                for x, dim in enumerate(dims):
                    if (dtype, causal, batch, seq, dim) in holes:
                        axes.plot(x, y, "x", color="black", markersize=7)
    lse = ", with LSE" if report["lse"] else ""
    figure.suptitle(f"Attune {report['version']} on {report['device']}{lse}; batch x S over D")
    figure.tight_layout()
    write_atomically(path, lambda name: figure.savefig(name, format="png", dpi=110))
    pyplot.close(figure)


def number(value, digits):
    return "-" if value is None else f"{value:.{digits}f}"


def print_report(report, out):
    print("| dtype | causal | batch x S | D | TFLOP/s | peer | ratio |", file=out)
    print("|:--|--:|:--|--:|--:|--:|--:|", file=out)
    cells = sorted(
        report["cells"].values(),
        key=lambda c: (c["dtype"], c["causal"], c["seq"], c["batch"], c["dim"]),
    )
    for c in cells:
        texts = [c["dtype"], int(c["causal"]), f"{c['batch']} x {c['seq']}", c["dim"]]
        texts += ["WRONG" if c["wrong"] else number(c["tflops"], 2), number(c["peer_tflops"], 2)]
        print("| " + " | ".join(map(str, [*texts, number(c["ratio"], 3)])) + " |", file=out)
    print(f"\n{len(report['holes'])} holes at S={hole_seq(cells)}", file=out)
    for h in report["holes"]:
        causal = " causal" if h["causal"] else ""
        print(f"  D={h['dim']} {h['dtype']}{causal}, batch {h['batch']}: {h['why']}", file=out)
    if report["unreached"]:
        print(f"{report['unreached']} cells were not reached: run it again", file=out)


# --- the command ----------------------------------------------------------------------------------


def dims_of(text):
    """Of "32:256:8,300": a range has a step of 8 where none is given."""
    dims = []
    for part in text.split(","):
        first, *more = (int(n) for n in part.split(":"))
        if len(more) > 2:
            raise ValueError(part)
        last = more[0] if more else first
        step = more[1] if len(more) > 1 else 8
        dims += range(first, last + 1, step)
    if not dims or min(dims) < 1:
        raise ValueError(text)
    return sorted(set(dims))


def sizes_of(text):
    sizes = [tuple(int(n) for n in part.split("x")) for part in text.split(",")]
    if any(len(size) != 2 or min(size) < 1 for size in sizes):
        raise ValueError(text)
    return list(dict.fromkeys(sizes))


def parse_options(argv):
    about = __doc__.replace("{hole_seq}", str(HOLE_SEQ))
    about = about.replace("{least_ratio}", str(LEAST_RATIO))
    parser = argparse.ArgumentParser(
        description=about.replace("{least_speed}", str(LEAST_SPEED)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    here = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=here, choices=["cuda", "cpu"])
    parser.add_argument("--dims", help="head dimensions (default: 32:256:8; CPU: 32:96:16)")
    parser.add_argument("--dtype", help="f32, f16, bf16 (default: f16,bf16; CPU: f32)")
    parser.add_argument("--causal", default="0,1", help="0, 1 or both (default: 0,1)")
    sizes = f"batch x S (default: {DEFAULTS['cuda']['sizes']}; CPU: {DEFAULTS['cpu']['sizes']})"
    parser.add_argument("--sizes", help=sizes)
    parser.add_argument("--lse", action="store_true", help="calls return the LSE too")
    parser.add_argument("--rounds", type=int, default=cuda.MOST_ROUNDS, help="bursts, at most")
    parser.add_argument(
        "--budget", type=float, default=600, help="seconds, after which no cell begins"
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="of libattune.so")
    parser.add_argument(
        "--json",
        metavar="FILE",
        type=Path,
        help="cells are kept here, and not measured again (default: atlas.json beside the library)",
    )
    parser.add_argument("--plot", metavar="FILE|none", help="the heat map (default: beside --json)")
    options = parser.parse_args(argv)
    defaults = DEFAULTS[options.device]
    for name, read in (("dims", dims_of), ("sizes", sizes_of)):
        given = getattr(options, name) or defaults[name]
        try:
            setattr(options, name, read(given))
        except ValueError:
            parser.error(f"--{name}: cannot read '{given}'")
    dtypes = ",".join(
        map(attune_ctypes.dtype_name, (options.dtype or defaults["dtype"]).split(","))
    )
    options.dtypes = cuda.names_of(parser, "--dtype", dtypes, tuple(cuda.DTYPES))
    causal = cuda.names_of(parser, "--causal", options.causal, ("0", "1"))
    options.causal = [name == "1" for name in dict.fromkeys(causal)]
    if options.rounds < 1:
        parser.error(f"--rounds: {options.rounds} is not positive")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error(f"there is no CUDA device that PyTorch {torch.__version__} can use here")
    options.json = options.json or options.build / "atlas.json"
    drawable = importlib.util.find_spec("matplotlib") is not None
    options.plot = options.plot or (str(options.json.with_suffix(".png")) if drawable else "none")
    if options.plot != "none" and not drawable:
        parser.error("--plot: matplotlib is not installed")
    return options


def new_report(lib, options):
    gpu = options.device == "cuda"
    return {
        "device": torch.cuda.get_device_name() if gpu else "cpu",
        "version": lib.version(),
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version() if gpu else None,
        "peer": PEER[options.device],
        "lse": options.lse,
        "seeds": [],
        "clocks": [],
        "seconds": 0.0,
        "cells": {},
    }


def resumed(report, path):
    """The report of the file, if there is one, of the same device and libraries."""
    if not path.exists():
        return report
    old = json.loads(path.read_text())
    for name in FEATURES:
        if old[name] != report[name]:
            raise ValueError(
                f"{path}: {name} is {old[name]} there and {report[name]} here; name another file"
            )
    return old


def save(report, path):
    write_atomically(path, lambda name: Path(name).write_text(to_json(report)))


def measure_all(lib, report, options):
    """Until all cells are there, or the budget is spent."""
    dice = random.Random(options.seed)
    rows = [row for row in cells_of(options, dice) if key_of(row) not in report["cells"]]
    talk(f"{len(rows)} cells on {report['device']}, seed {options.seed}")
    gpu = options.device == "cuda"
    flush = torch.empty(cuda.FLUSH_BYTES, dtype=torch.uint8, device=cuda.DEVICE) if gpu else None
    if gpu and rows:
        cuda.heat(cuda.HEAT_SECONDS)
        report["clocks"].append(cuda.clocks())
    report["seeds"].append(options.seed)
    begin = saved = time.monotonic()
    before = report["seconds"]
    try:
        for n, row in enumerate(rows):
            if time.monotonic() - begin > options.budget:
                break
            progress(f"{n + 1} of {len(rows)}: {key_of(row)}")
            cell = report["cells"][key_of(row)] = cell_of(lib, row, options, dice, flush)
            if cell["wrong"]:
                talk(f"WRONG {key_of(row)}: {cell['wrong']}")
            report["seconds"] = before + time.monotonic() - begin
            if time.monotonic() - saved > SAVE_SECONDS:
                save(report, options.json)
                saved = time.monotonic()
    finally:
        progress("")
        report["unreached"] = sum(key_of(row) not in report["cells"] for row in rows)
        report["holes"] = holes_of(list(report["cells"].values()), options.device)
        save(report, options.json)
    if gpu and rows:
        report["clocks"].append(cuda.clocks())


def run(options):
    if options.device == "cpu":
        cuda.DEVICE = "cpu"
    lib = attune_ctypes.load(options.build / "libattune.so")
    report = resumed(new_report(lib, options), options.json)
    measure_all(lib, report, options)
    save(report, options.json)
    print_report(report, sys.stdout)
    talk(f"cells: {options.json}")
    if options.plot != "none" and report["cells"]:
        heat_map(report, options.plot)
        talk(f"heat map: {options.plot}")
    return 1 if any(cell["wrong"] for cell in report["cells"].values()) else 0


def main(argv=None):
    options = parse_options(argv)
    try:
        with torch.no_grad():
            return run(options)
    except KeyboardInterrupt:
        return 130
    except (OSError, ValueError, attune_ctypes.Error) as error:
        talk(f"atlas: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
