"""compare_torch.py --pass backward: the backward pass on the CPU beside PyTorch's autograd of
scaled_dot_product_attention.

As compare_torch.py does: one process, the same threads and data, interleaved pairs in random order,
ratios with bootstrap intervals (above 1: Attune is faster), gradients compared with float64 before
anything is timed. A row is measured twice: the backward pass alone, after a forward pass that is
not timed, and forward and backward together. Both sides allocate what they return inside the timed
calls. PyTorch's backward pass alone is the time of torch.autograd.grad on a graph that is kept.

Sets of shapes:
  core      fp32, 8 heads, S=512 to 4096, causal and not
  features  fp16, bf16 and grouped heads

Examples:
  bench/compare_torch.py --pass backward
  bench/compare_torch.py --pass backward --shape 1x8x1024x64 --threads 1 --json backward.json
"""

import argparse
import ctypes
import math
import os
import random
import statistics
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import attune_ctypes
import compare_torch
import torch
from report import (
    add_common_options,
    deliver,
    error_of,
    geometric_mean,
    print_bars,
    progress,
    talk,
)

ROOT = Path(__file__).resolve().parents[1]
SETS = ("core", "features")
# |ours - float64| <= TOLERANCE * (largest |float64| + |float64|) of a gradient.
TOLERANCE = {"f32": 1e-5, "f16": 2e-3, "bf16": 1.6e-2}
BACKWARD, BOTH = "backward", "forward+backward"


@dataclass
class Row:
    set: str
    side: compare_torch.Side
    # filled in by the run: by what is timed
    runs: dict = field(default_factory=dict)  # (ours, peer)
    calls: dict = field(default_factory=dict)
    pairs: dict = field(default_factory=lambda: {BACKWARD: [], BOTH: []})
    errors: tuple = (math.nan, math.nan)
    wrong: str = ""

    def name(self):
        causal = " causal" if self.side.causal else ""
        return f"{self.side.shape} {self.side.dtype}{causal}"


def rows_of(name, quick):
    seqs = [512, 1024] if quick else [512, 1024, 2048, 4096]
    middle = [512] if quick else [1024, 2048]
    sides = []
    if name == "core":
        for dim in (64, 128):
            for seq in seqs:
                for causal in (False, True):
                    sides.append(compare_torch.Side("f32", f"1x8x{seq}x{dim}", causal))
    else:
        for dim in (64, 128):
            for seq in middle:
                plain, grouped = f"1x8x{seq}x{dim}", f"1x8/2x{seq}x{dim}"
                sides += [compare_torch.Side(dtype, plain) for dtype in ("f16", "bf16")]
                sides += [compare_torch.Side(dtype, grouped) for dtype in ("f32", "bf16")]
    return [Row(name, side) for side in sides]


def flops(side, what):
    """Of two products forward and five backward."""
    batch, heads, _, seq_q, seq_k, dim, dim_v = attune_ctypes.parse_shape(side.shape)
    width = 3 * dim + 2 * dim_v + (dim + dim_v if what == BOTH else 0)
    return 2 * batch * heads * seq_q * seq_k * width / (2 if side.causal else 1)


# --- calls ----------------------------------------------------------------------------------------


def backward_args(lib, forward):
    """The library's defaults, after a forward call."""
    args = attune_ctypes.BackwardArgs()
    lib._check(lib._lib.attune_backward_args_init(ctypes.byref(args), ctypes.sizeof(args)))
    args.forward = ctypes.pointer(forward)
    return args


class Ours:
    def __init__(self, side, inputs, dout, lib, threads):
        self.inputs, self.dout, self.lib = inputs, dout, lib
        q, k, v = inputs
        self.out_shape = (*q.shape[:3], v.shape[3])
        self.args = lib.args(
            q,
            k,
            v,
            torch.empty(self.out_shape, dtype=q.dtype),
            lse=torch.empty(q.shape[:3]),
            causal=int(side.causal),
            threads=threads,
            alignment=attune_ctypes.ALIGNMENTS["top_left"],
        )
        self.grads = backward_args(lib, self.args)
        self.grads.dout = attune_ctypes.tensor(dout)
        for name, x in zip(("dq", "dk", "dv"), inputs, strict=True):
            setattr(self.grads, name, attune_ctypes.tensor(x))
        self.forward()

    def forward(self):
        self.out = torch.empty(self.out_shape, dtype=self.dout.dtype)
        self.lse = torch.empty(self.out_shape[:3])
        self.args.out.data = self.out.data_ptr()
        self.args.lse.data = self.lse.data_ptr()
        self.lib.forward(self.args)

    def backward(self, allocate=torch.empty_like):
        gradients = [allocate(x) for x in self.inputs]
        for name, x in zip(("dq", "dk", "dv"), gradients, strict=True):
            getattr(self.grads, name).data = x.data_ptr()
        self.lib._check(self.lib._lib.attune_backward(ctypes.byref(self.grads)))
        return gradients

    def both(self):
        self.forward()
        return self.backward()


class Torch:
    def __init__(self, side, inputs, dout):
        self.inputs = [x.detach().requires_grad_() for x in inputs]
        self.dout, self.causal = dout, side.causal
        self.grouped = inputs[0].shape[1] != inputs[1].shape[1]
        self.out = self.forward()

    def forward(self):
        return torch.nn.functional.scaled_dot_product_attention(
            *self.inputs, is_causal=self.causal, enable_gqa=self.grouped
        )

    def backward(self):
        return torch.autograd.grad(self.out, self.inputs, self.dout, retain_graph=True)

    def both(self):
        return torch.autograd.grad(self.forward(), self.inputs, self.dout)


# --- correctness ----------------------------------------------------------------------------------


def float64_gradients(inputs, dout, causal):
    """dQ, dK and dV in double precision, one head at a time to keep the scores small."""
    q, k, v = inputs
    group = q.shape[1] // k.shape[1]
    scale = 1 / math.sqrt(q.shape[3])
    grads = [torch.zeros(x.shape, dtype=torch.float64) for x in inputs]
    later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            one_q, one_k, one_v = q[b, h].double(), k[b, h // group].double(), v[b, h // group]
            one_v, one_dout = one_v.double(), dout[b, h].double()
            scores = one_q @ one_k.T * scale
            if causal:
                scores.masked_fill_(later, -math.inf)
            p = torch.softmax(scores, dim=-1)
            dp = one_dout @ one_v.T
            ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * scale
            grads[0][b, h] = ds @ one_k
            grads[1][b, h // group] += ds.T @ one_q
            grads[2][b, h // group] += p.T @ one_dout
    return grads


def check(gradients, expected, dtype):
    """The largest error of a gradient's largest element, and what is wrong ('' for nothing)."""
    worst, wrong = 0.0, []
    for name, got, want in zip(("dq", "dk", "dv"), gradients, expected, strict=True):
        size = float(want.abs().max())
        error, what = error_of(got.double() / size, want / size, TOLERANCE[dtype], "f64")
        worst = max(worst, error)
        wrong += [f"{name}: {what}"] if what else []
    return worst, ", ".join(wrong)


# --- measurement ----------------------------------------------------------------------------------


def prepare(row, lib, threads, seed):
    q, k, v, _ = compare_torch.make_inputs(row.side, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    dout = torch.randn(*q.shape[:3], v.shape[3], generator=generator).to(q.dtype)
    ours = Ours(row.side, (q, k, v), dout, lib, threads)
    peer = Torch(row.side, (q, k, v), dout)
    expected = float64_gradients((q, k, v), dout, row.side.causal)
    poisoned = ours.backward(lambda x: torch.full_like(x, math.nan))
    found = [check(poisoned, expected, row.side.dtype)]
    found.append(check(peer.backward(), expected, row.side.dtype))
    row.errors = tuple(error for error, _ in found)
    said = zip(("ours", "torch"), found, strict=True)
    row.wrong = "; ".join(f"{who}: {what}" for who, (_, what) in said if what)
    row.runs = {BACKWARD: (ours.backward, peer.backward), BOTH: (ours.both, peer.both)}
    for what, runs in row.runs.items():
        row.calls[what] = tuple(compare_torch.calls_a_sample(run) for run in runs)


def sample(row, what, dice):
    times = [0.0, 0.0]
    order = [0, 1]
    dice.shuffle(order)
    for side in order:
        times[side] = compare_torch.seconds_a_call(row.runs[what][side], row.calls[what][side])
    row.pairs[what].append(tuple(times))


def run_rounds(rows, rounds, deadline, peak, dice):
    peaks = []
    longest = 0.0
    for done in range(rounds):
        begin = time.monotonic()
        if done >= compare_torch.FEWEST_ROUNDS and begin + longest > deadline:
            break
        progress(f"round {done + 1}/{rounds}")
        peaks.append(peak())
        order = [(row, what) for row in rows for what in (BACKWARD, BOTH)]
        dice.shuffle(order)
        for row, what in order:
            sample(row, what, dice)
        longest = max(longest, time.monotonic() - begin)
    progress("")
    return peaks


def result_of(row, what, peak_gflops):
    ours_us = 1e6 * statistics.median(ours for ours, _ in row.pairs[what])
    peer_us = 1e6 * statistics.median(peer for _, peer in row.pairs[what])
    ratio, interval = compare_torch.ratio_interval(row.pairs[what])
    return {
        "set": row.set,
        "pass": what,
        "shape": row.side.shape,
        "dtype": row.side.dtype,
        "causal": row.side.causal,
        "peer": "torch",
        "ours_us": ours_us,
        "peer_us": peer_us,
        "ratio": ratio,
        "ci": interval,
        "pct_peak": 100 * flops(row.side, what) / (ours_us * 1e3) / peak_gflops,
        "max_err": row.errors[0],
        "peer_err": row.errors[1],
        "mask": False,
        "rounds": len(row.pairs[what]),
        "wrong": row.wrong,
    }


def verdicts(results):
    """The bars of the project, as (bar, measured, reached)."""
    core = [r for r in results if r["set"] == "core" and r["pass"] == BOTH]
    if not core:
        return []
    low = min(core, key=lambda r: r["ci"][1])
    mean = geometric_mean([r["ratio"] for r in core])
    return [
        (
            "core, forward+backward: no interval below 0.98x PyTorch",
            f"{low['shape']}{' causal' if low['causal'] else ''}: "
            f"{low['ci'][0]:.3f}..{low['ci'][1]:.3f}",
            low["ci"][1] >= 0.98,
        ),
        (
            "core, forward+backward: geometric mean >= 1.2x PyTorch",
            f"{mean:.3f}x",
            mean >= 1.2,
        ),
    ]


# --- the command ----------------------------------------------------------------------------------


def print_tables(report, out):
    print(
        "| set | shape | dtype | causal | pass | ours us | peer us | ratio | 95 % interval | "
        "% peak | max err | peer err |",
        file=out,
    )
    print("|:--|:--|:--|:--|:--|--:|--:|--:|:--|--:|--:|--:|", file=out)
    for r in report["rows"]:
        print(
            f"| {r['set']} | {r['shape']} | {r['dtype']} | {int(r['causal'])} | {r['pass']} | "
            f"{r['ours_us']:.1f} | {r['peer_us']:.1f} | {r['ratio']:.3f} | "
            f"{r['ci'][0]:.3f}..{r['ci'][1]:.3f} | {r['pct_peak']:.1f} | "
            f"{r['max_err']:.1e} | {r['peer_err']:.1e} |",
            file=out,
        )
    print(
        f"\nforward+backward: geometric mean {report['geomean']:.3f}, min {report['min']:.3f}; "
        f"peak {report['peak_gflops']:.1f} GFLOP/s, {report['threads']} threads\n",
        file=out,
    )
    print_bars(report["bars"], out)


def parse_options(argv):
    usable = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pass", default="backward", choices=["backward"], dest="what")
    parser.add_argument("--device", default="cpu", choices=["cpu"])
    parser.add_argument("--set", action="append", choices=SETS, dest="sets")
    parser.add_argument("--shape", action="append", default=[], dest="shapes")
    parser.add_argument(
        "--dtype", type=attune_ctypes.dtype_name, default="f32", choices=list(TOLERANCE)
    )
    parser.add_argument("--threads", type=int, default=usable)
    parser.add_argument("--rounds", type=int, help="pairs a row, at most (default 21; --quick 7)")
    parser.add_argument("--budget", type=float, default=230, help="seconds in all")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--quick", action="store_true", help="short sequences, few rounds")
    add_common_options(parser, ROOT)
    options = parser.parse_args(argv)
    compare_torch.settle_cpu_options(parser, options)
    return options


def choose_rows(options):
    if options.shapes:
        return [
            Row("custom", compare_torch.Side(options.dtype, shape, causal))
            for shape in options.shapes
            for causal in (False, True)
        ]
    rows = [row for name in options.sets or SETS for row in rows_of(name, options.quick)]
    if any(row.side.dtype == "bf16" for row in rows) and not compare_torch.torch_has_bf16():
        talk("bf16 left out: PyTorch's bf16 attention crashes on this processor")
        rows = [row for row in rows if row.side.dtype != "bf16"]
    return rows


def compare_all(options):
    torch.set_num_threads(options.threads)
    lib = attune_ctypes.load(options.build / "libattune.so")
    dice = random.Random(options.seed)
    rows = choose_rows(options)
    talk(f"{len(rows)} rows, {options.threads} threads, seed {options.seed}")
    begin = time.monotonic()
    for row in rows:
        progress(f"checking {row.set} {row.name()}")
        prepare(row, lib, options.threads, options.seed)
        if row.wrong:
            talk(f"WRONG {row.set} {row.name()}: {row.wrong}")
    peaks = run_rounds(
        rows,
        options.rounds,
        begin + options.budget,
        lambda: compare_torch.sample_peak(options.build / "attune", options.threads),
        dice,
    )
    peak = statistics.median(peaks)
    results = [result_of(row, what, peak) for row in rows for what in (BACKWARD, BOTH)]
    both = [r for r in results if r["pass"] == BOTH]
    headline = [r["ratio"] for r in both if r["set"] == "core"] or [r["ratio"] for r in both]
    return {
        "rows": results,
        "geomean": geometric_mean(headline),
        "min": min(headline),
        "bars": [{"bar": b, "measured": m, "reached": bool(ok)} for b, m, ok in verdicts(results)],
        "wrong": sum(bool(r["wrong"]) for r in results),
        "peak_gflops": peak,
        "threads": options.threads,
        "seed": options.seed,
        "version": lib.version(),
        "torch": torch.__version__,
        "seconds": time.monotonic() - begin,
    }


def main(argv=None):
    options = parse_options(argv)
    try:
        report = compare_all(options)
        title = (
            f"Attune {report['version']} and PyTorch {report['torch']}, {report['threads']} threads"
        )
        return deliver(report, title, options, print_tables)
    except KeyboardInterrupt:
        return 130
    except (OSError, attune_ctypes.Error) as error:
        talk(f"compare_torch: {error}")
        return 1
    except subprocess.CalledProcessError as error:
        talk(f"compare_torch: {' '.join(map(str, error.cmd))}: {error.stderr.decode().strip()}")
        return 1
