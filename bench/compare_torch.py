#!/usr/bin/env python3
"""Compares Attune with PyTorch's scaled_dot_product_attention: one process, the same threads, the
same data.

The method is made for a machine that is busy with other work too:
- Attune and the peer are timed in pairs, one after the other, in random order; the rows take turns;
- the ratio is the median over these pairs, with a bootstrap 95 % confidence interval (above 1:
  Attune is faster);
- both results are compared with float64 before anything is timed;
- both allocate their output inside the timed call;
- `attune peak` measures the multiply-add rate between the rounds; its median is 100 % in pct_peak.

--device cuda and --pass backward have other peers, sets and options: see their --help.

Sets of shapes:
  core      fp32, 8 heads, S=512 to 4096, causal and not, against PyTorch
  features  fp16, bf16, an additive mask, and grouped heads, against PyTorch
  half      fp16 and bf16, against Attune's own fp32
  decode    one query, 16384 keys, against PyTorch
  mask      an additive mask, and grouped heads, against Attune's own time without them
  memory    peak of extra memory at S=16384, against PyTorch

Examples:
  bench/compare_torch.py --device cpu
  bench/compare_torch.py --set core --plot ratios.png --json ratios.json
  bench/compare_torch.py --shape 1x8x1024x64 --shape 1x32/8x1/4096x128 --dtype bf16
  bench/compare_torch.py --quick
  bench/compare_torch.py --pass backward
  bench/compare_torch.py --device cuda --set d64-4k,bf16-16k
"""

import argparse
import functools
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import find_python  # noqa: E402

find_python.need("torch")
import attune_ctypes  # noqa: E402
import torch  # noqa: E402
from report import (  # noqa: E402
    add_common_options,
    deliver,
    error_of,
    geometric_mean,
    print_bars,
    progress,
    settle_common_options,
    talk,
)
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
SETS = ("core", "features", "half", "decode", "mask", "memory")
TORCH_DTYPE = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
# |ours - float64| <= TOLERANCE * (1 + |float64|): a few roundings of the dtype, 1e-5 for fp32.
TOLERANCE = {"f32": 1e-5, "f16": 1e-3, "bf16": 8e-3}
SAMPLE_SECONDS = 0.02  # short calls are repeated until a sample is this long
SETTLE_SECONDS = 0.003  # lets the other side's threads stop spinning
FEWEST_ROUNDS = 5
LONG_CALL_ROUNDS = 2  # rounds of rows whose bar is memory, not time
MOST_THREADS = 1024  # of the library
CHECKED_ROWS = 1024  # of a longer sequence: the first, the last, and random ones between


# --- what is compared -----------------------------------------------------------------------------


@dataclass
class Side:
    """One of the two competitors of a row."""

    dtype: str
    shape: str
    causal: bool = False
    mask: bool = False
    torch: bool = False


@dataclass
class Row:
    set: str
    ours: Side
    peer: Side
    peer_name: str
    most_rounds: int = 10**9
    # filled in by the run
    run_ours: object = None
    run_peer: object = None
    calls: tuple = (1, 1)
    pairs: list = field(default_factory=list)  # (ours, peer) seconds a call, one pair a round
    errors: tuple = (math.nan, math.nan)
    extra_mb: float = math.nan
    wrong: str = ""

    def name(self):
        tags = [self.ours.shape, self.ours.dtype]
        tags += ["causal"] if self.ours.causal else []
        tags += ["mask"] if self.ours.mask else []
        return " ".join(tags)


def against_torch(name, shape, dtype="f32", causal=False, mask=False, **more):
    side = Side(dtype, shape, causal, mask)
    return Row(name, side, Side(dtype, shape, causal, mask, torch=True), "torch", **more)


@functools.cache
def torch_has_bf16():
    """On processors that report AMX and do not have it, PyTorch's bf16 attention ends its process
    with an illegal instruction. So another process tries it."""
    code = (
        "import torch; x = torch.ones(1, 8, 512, 64).bfloat16();"
        "torch.nn.functional.scaled_dot_product_attention(x, x, x)"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode >= 0


def rows_of(name, quick):
    seqs = [512, 1024] if quick else [512, 1024, 2048, 4096]
    middle = [512] if quick else [1024, 2048]
    rows = []
    if name == "core":
        for dim in (64, 128):
            for seq in seqs:
                for causal in (False, True):
                    rows.append(against_torch(name, f"1x8x{seq}x{dim}", causal=causal))
    elif name == "features":
        for dim in (64, 128):
            for seq in middle:
                plain, grouped = f"1x8x{seq}x{dim}", f"1x8/2x{seq}x{dim}"
                rows += [against_torch(name, plain, dtype) for dtype in ("f16", "bf16")]
                rows.append(against_torch(name, plain, mask=True))
                rows += [against_torch(name, grouped, dtype) for dtype in ("f32", "bf16")]
    elif name == "half":
        for dtype in ("f16", "bf16"):
            for dim in (64, 128):
                for seq in middle:
                    shape = f"1x8x{seq}x{dim}"
                    rows.append(Row(name, Side(dtype, shape), Side("f32", shape), "ours_f32"))
    elif name == "decode":
        for dtype in ("f32",) if quick else ("f32", "f16", "bf16"):
            for dim in (64, 128):
                rows.append(against_torch(name, f"1x8x1/16384x{dim}", dtype))
    elif name == "mask":
        for dim in (64, 128):
            for seq in middle:
                plain = Side("f32", f"1x8x{seq}x{dim}")
                masked = Side("f32", plain.shape, mask=True)
                rows.append(Row(name, masked, plain, "ours_unmasked"))
                grouped = Side("f32", f"1x8/2x{seq}x{dim}")
                rows.append(Row(name, grouped, plain, "ours_ungrouped"))
    elif name == "memory":
        seq = 4096 if quick else 16384
        for dim, causal in ((64, False), (128, True)):  # about the same work, seconds a call
            shape = f"1x8x{seq}x{dim}"
            rows.append(against_torch(name, shape, causal=causal, most_rounds=LONG_CALL_ROUNDS))
    return rows


def flops(side):
    batch, heads, _, seq_q, seq_k, dim, dim_v = attune_ctypes.parse_shape(side.shape)
    return 2 * batch * heads * seq_q * seq_k * (dim + dim_v) / (2 if side.causal else 1)


# --- data and calls -------------------------------------------------------------------------------


def make_inputs(side, seed):
    """The same seed gives the same values in every dtype, rounded."""
    batch, heads, heads_kv, seq_q, seq_k, dim, dim_v = attune_ctypes.parse_shape(side.shape)
    generator = torch.Generator().manual_seed(seed)

    def values(*shape):
        return torch.randn(*shape, generator=generator)

    dtype = TORCH_DTYPE[side.dtype]
    q = values(batch, heads, seq_q, dim).to(dtype)
    k = values(batch, heads_kv, seq_k, dim).to(dtype)
    v = values(batch, heads_kv, seq_k, dim_v).to(dtype)
    mask = values(batch, 1, seq_q, seq_k) if side.mask else None
    return q, k, v, mask


def poisoned(shape, dtype):
    """For checks: memory that is used again may hold the right result already."""
    return torch.full(shape, math.nan, dtype=dtype)


def make_call(side, inputs, lib, threads, allocate=torch.empty):
    """A function that computes the side's attention and returns its output."""
    q, k, v, mask = inputs
    if side.torch:
        grouped = q.shape[1] != k.shape[1]

        def run_torch():
            with torch.no_grad():
                return scaled_dot_product_attention(
                    q, k, v, attn_mask=mask, is_causal=side.causal, enable_gqa=grouped
                )

        return run_torch
    out_shape = (*q.shape[:3], v.shape[3])
    more = {} if mask is None else {"mask": mask}
    args = lib.args(
        q,
        k,
        v,
        torch.empty(out_shape, dtype=q.dtype),
        causal=int(side.causal),
        threads=threads,
        alignment=attune_ctypes.ALIGNMENTS["top_left"],
        **more,
    )

    def run_ours(keep=inputs):  # args has only their addresses
        out = allocate(out_shape, dtype=q.dtype)
        args.out.data = out.data_ptr()
        lib.forward(args)
        return out

    return run_ours


# --- correctness ----------------------------------------------------------------------------------


def float64_rows(inputs, causal, rows):
    """The given query rows in double precision, one head at a time to keep the scores small."""
    q, k, v, mask = inputs
    batch, heads = q.shape[:2]
    group = heads // k.shape[1]
    scale = 1 / math.sqrt(q.shape[3])
    result = torch.empty(batch, heads, len(rows), v.shape[3], dtype=torch.float64)
    later = torch.arange(k.shape[2])[None, :] > rows[:, None]  # top-left causal
    for b in range(batch):
        for h in range(heads):
            scores = q[b, h, rows].double() @ k[b, h // group].double().T * scale
            if mask is not None:
                scores += mask[b, 0, rows].double()
            if causal:
                scores.masked_fill_(later, -math.inf)
            result[b, h] = torch.softmax(scores, dim=-1) @ v[b, h // group].double()
    return result


def compare(out, expected, dtype):
    """The largest error, and what is wrong with the result ('' when nothing is)."""
    return error_of(out, expected, TOLERANCE[dtype], dtype)


def expect(side, inputs, most_rows=CHECKED_ROWS):
    """Which query rows are checked, and what they must be."""
    seq_q = inputs[0].shape[2]
    rows = torch.arange(seq_q)
    if seq_q > most_rows:
        between = torch.randperm(seq_q - 2)[: most_rows - 2] + 1
        rows = torch.cat([torch.tensor([0, seq_q - 1]), between]).sort().values
    return rows, float64_rows(inputs, side.causal, rows)


def check_side(run, side, expected):
    rows, values = expected
    return compare(run()[:, :, rows], values, side.dtype)


# --- measurement ----------------------------------------------------------------------------------


def seconds_a_call(run, calls):
    time.sleep(SETTLE_SECONDS)
    begin = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - begin) / calls


def calls_a_sample(run):
    seconds = min(seconds_a_call(run, 1), seconds_a_call(run, 1))
    return max(1, math.ceil(SAMPLE_SECONDS / seconds)) if seconds < SAMPLE_SECONDS else 1


def prepare(row, lib, threads, seed):
    inputs_ours = make_inputs(row.ours, seed)
    inputs_peer = inputs_ours if row.peer.torch else make_inputs(row.peer, seed)
    row.run_ours = make_call(row.ours, inputs_ours, lib, threads)
    row.run_peer = make_call(row.peer, inputs_peer, lib, threads)
    expected_ours = expect(row.ours, inputs_ours)
    expected_peer = expected_ours if row.peer.torch else expect(row.peer, inputs_peer)

    def check(side, inputs, expected):
        return check_side(make_call(side, inputs, lib, threads, poisoned), side, expected)

    ours_error, ours_wrong = check(row.ours, inputs_ours, expected_ours)
    peer_error, peer_wrong = check(row.peer, inputs_peer, expected_peer)
    row.errors = (ours_error, peer_error)
    found = (("ours", ours_wrong), (row.peer_name, peer_wrong))
    row.wrong = "; ".join(f"{who}: {what}" for who, what in found if what)
    if row.most_rounds > LONG_CALL_ROUNDS:
        row.calls = (calls_a_sample(row.run_ours), calls_a_sample(row.run_peer))


def sample_pair(row, dice):
    times = [0.0, 0.0]
    order = [0, 1]
    dice.shuffle(order)
    for side in order:
        times[side] = seconds_a_call((row.run_ours, row.run_peer)[side], row.calls[side])
    row.pairs.append(tuple(times))


def sample_peak(tool, threads):
    command = [tool, "peak", "--threads", str(threads), "--seconds", "0.05", "--json", "-"]
    result = subprocess.run(command, check=True, capture_output=True)
    return json.loads(result.stdout)["peak_gflops"]


def measure_extra_mb(side, library, threads):
    """In a fresh process, where no workspace of an earlier call can hide this one's."""
    command = [
        sys.executable,
        attune_ctypes.__file__,
        "--library",
        str(library),
        "--shape",
        side.shape,
        "--dtype",
        side.dtype,
        "--threads",
        str(threads),
    ]
    command += ["--causal"] if side.causal else []
    command += ["--mask"] if side.mask else []
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["extra_mb"]


def run_rounds(rows, rounds, deadline, peak, dice):
    """Interleaves all rows until rounds or time are up; returns the samples of the peak."""
    peaks = []
    longest = 0.0  # of the rounds that are like those to come
    for done in range(rounds):
        begin = time.monotonic()
        if done >= FEWEST_ROUNDS and begin + longest > deadline:
            break
        progress(f"round {done + 1}/{rounds}")
        peaks.append(peak())
        order = [row for row in rows if len(row.pairs) < row.most_rounds]
        dice.shuffle(order)
        for row in order:
            sample_pair(row, dice)
        if done >= LONG_CALL_ROUNDS:
            longest = max(longest, time.monotonic() - begin)
    progress("")
    return peaks


# --- statistics -----------------------------------------------------------------------------------


def ratio_interval(pairs, resamples=2000, seed=0):
    """The median of peer/ours over the pairs, and its bootstrap 95 % interval."""
    ratios = [peer / ours for ours, peer in pairs]
    dice = random.Random(seed)
    medians = sorted(
        statistics.median(dice.choices(ratios, k=len(ratios))) for _ in range(resamples)
    )
    low, high = medians[int(0.025 * resamples)], medians[int(0.975 * resamples) - 1]
    return statistics.median(ratios), [low, high]


def result_of(row, peak_gflops):
    ours_us = 1e6 * statistics.median(ours for ours, _ in row.pairs)
    peer_us = 1e6 * statistics.median(peer for _, peer in row.pairs)
    ratio, interval = ratio_interval(row.pairs)
    return {
        "set": row.set,
        "shape": row.ours.shape,
        "dtype": row.ours.dtype,
        "causal": row.ours.causal,
        "peer": row.peer_name,
        "ours_us": ours_us,
        "peer_us": peer_us,
        "ratio": ratio,
        "ci": interval,
        "pct_peak": 100 * flops(row.ours) / (ours_us * 1e3) / peak_gflops,
        "extra_mb": row.extra_mb,
        "max_err": row.errors[0],
        "peer_err": row.errors[1],
        "peer_pct_peak": 100 * flops(row.peer) / (peer_us * 1e3) / peak_gflops,
        "mask": row.ours.mask,
        "rounds": len(row.pairs),
        "wrong": row.wrong,
    }


def scope(results):
    """What was measured: "S=512,1024 f32", S being the longer of queries and keys."""
    lengths = {max(attune_ctypes.parse_shape(shape)[3:5]) for shape, _ in results}
    dtypes = [dtype for dtype in TORCH_DTYPE if dtype in {d for _, d in results}]
    return f"S={','.join(map(str, sorted(lengths)))} {','.join(dtypes)}"


def bar_name(name, bar, results):
    """Says what was measured, and that it is not the bar where it is less (--quick)."""
    measured = scope([(r["shape"], r["dtype"]) for r in results])
    whole = scope([(row.ours.shape, row.ours.dtype) for row in rows_of(name, quick=False)])
    missing = "" if measured == whole else f" [not the bar itself, which is {whole}]"
    return f"{name}, {measured}: {bar}{missing}"


def verdicts(results):
    """The bars of the project, as (bar, measured, reached)."""
    by_set = {}
    for result in results:
        by_set.setdefault(result["set"], []).append(result)
    bars = []
    if core := by_set.get("core"):
        low = min(core, key=lambda r: r["ci"][1])
        bars.append(
            (
                bar_name("core", "no interval below 0.98x PyTorch", core),
                f"{low['shape']}{' causal' if low['causal'] else ''}: "
                f"{low['ci'][0]:.3f}..{low['ci'][1]:.3f}",
                low["ci"][1] >= 0.98,
            )
        )
        mean = geometric_mean([r["ratio"] for r in core])
        long = [r for r in core if not r["causal"] and int(r["shape"].split("x")[2]) >= 1024]
        peak = min((r["pct_peak"] for r in long), default=math.nan)
        bars.append(
            (
                bar_name(
                    "core",
                    "geometric mean >= 1.3x, or >= 70 % of peak (non-causal, S >= 1024)",
                    core,
                ),
                f"{mean:.3f}x; {peak:.1f} %",
                mean >= 1.3 or peak >= 70,
            )
        )
    for name, bar, limit in (
        ("half", "fp16/bf16 within 1.3x of the fp32 time", 1.3),
        ("decode", "at least PyTorch's speed", 1.0),
        ("mask", "additive mask and GQA within 1.25x of the plain time", 1.25),
    ):
        if not by_set.get(name):
            continue
        slow = min(by_set[name], key=lambda r: r["ratio"])
        low, high = slow["ci"]
        bars.append(
            (
                bar_name(name, bar, by_set[name]),
                f"{slow['shape']} {slow['dtype']} vs {slow['peer']}: "
                f"{1 / slow['ratio']:.3f}x the time ({1 / high:.3f}..{1 / low:.3f})",
                1 / slow["ratio"] <= limit,
            )
        )
    if features := by_set.get("features"):
        mean = geometric_mean([r["ratio"] for r in features])
        slow = min(features, key=lambda r: r["ratio"])
        bars.append(
            (
                bar_name("features", "geometric mean >= PyTorch's speed", features),
                f"{mean:.3f}x; least {slow['shape']} {slow['dtype']}: {slow['ratio']:.3f}x",
                mean >= 1.0,
            )
        )
    if memory := by_set.get("memory"):
        most = max(memory, key=lambda r: r["extra_mb"])
        measured = f"{most['extra_mb']:.1f} MB at {most['shape']}"
        bar = bar_name("memory", "below 64 MB extra", memory)
        bars.append((bar, measured, most["extra_mb"] < 64))
    return bars


# --- output ---------------------------------------------------------------------------------------


def print_tables(report, out):
    print(
        "| set | shape | dtype | causal | peer | ours us | peer us | ratio | 95 % interval | "
        "% peak | extra MB | max err | peer err |",
        file=out,
    )
    print("|:--|:--|:--|:--|:--|--:|--:|--:|:--|--:|--:|--:|--:|", file=out)
    for r in report["rows"]:
        print(
            f"| {r['set']} | {r['shape']}{' mask' if r['mask'] else ''} | {r['dtype']} | "
            f"{int(r['causal'])} | {r['peer']} | {r['ours_us']:.1f} | {r['peer_us']:.1f} | "
            f"{r['ratio']:.3f} | {r['ci'][0]:.3f}..{r['ci'][1]:.3f} | {r['pct_peak']:.1f} | "
            f"{r['extra_mb']:.1f} | {r['max_err']:.1e} | {r['peer_err']:.1e} |",
            file=out,
        )
    print(
        f"\ngeometric mean {report['geomean']:.3f}, min {report['min']:.3f}; peak "
        f"{report['peak_gflops']:.1f} GFLOP/s (best {report['peak_gflops_max']:.1f}), "
        f"{report['threads']} threads\n",
        file=out,
    )
    print_bars(report["bars"], out)


# --- the command ----------------------------------------------------------------------------------


def parse_options(argv):
    usable = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--pass", default="forward", choices=["forward", "backward"], dest="what")
    parser.add_argument(
        "--set",
        action="append",
        choices=SETS,
        dest="sets",
        help="measure this set (may be repeated); all by default",
    )
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        dest="shapes",
        help="BxHxSxD (H/Hkv, Sq/Sk, D/Dv) against PyTorch instead of the sets; may be repeated",
    )
    parser.add_argument(
        "--dtype",
        type=attune_ctypes.dtype_name,
        default="f32",
        choices=list(TORCH_DTYPE),
        help="of --shape",
    )
    parser.add_argument(
        "--threads", type=int, default=usable, help=f"default: all usable ({usable})"
    )
    parser.add_argument("--rounds", type=int, help="pairs a row, at most (default 21; --quick 7)")
    parser.add_argument(
        "--budget",
        type=float,
        default=230,
        help="seconds in all, after which no round begins; 5 rounds always run (default 230)",
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--quick", action="store_true", help="short sequences, few rounds")
    add_common_options(parser, ROOT)
    options = parser.parse_args(argv)
    settle_cpu_options(parser, options)
    return options


def settle_cpu_options(parser, options):
    """Refuses what cannot be measured; of the forward and of the backward comparison."""
    if options.threads < 1:
        parser.error(f"--threads: {options.threads} is not positive")
    if options.threads > MOST_THREADS:
        parser.error(f"--threads: {options.threads} is above {MOST_THREADS}")
    if options.rounds is not None and options.rounds < 1:
        parser.error(f"--rounds: {options.rounds} is not positive")
    for shape in options.shapes:
        try:
            attune_ctypes.parse_shape(shape)
        except ValueError as error:
            parser.error(f"--shape: {error}")
    settle_common_options(parser, options)
    options.rounds = options.rounds or (7 if options.quick else 21)


def choose_rows(options):
    if options.shapes:
        return [
            against_torch("custom", shape, options.dtype, causal)
            for shape in options.shapes
            for causal in (False, True)
        ]
    rows = [row for name in options.sets or SETS for row in rows_of(name, options.quick)]
    crashing = [r for r in rows if r.peer.torch and r.peer.dtype == "bf16" and not torch_has_bf16()]
    if crashing:
        talk(f"{len(crashing)} rows left out: PyTorch's bf16 attention crashes on this processor")
    return [row for row in rows if row not in crashing]


def compare_all(options):
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    library = options.build / "libattune.so"
    lib = attune_ctypes.load(library)
    dice = random.Random(options.seed)
    rows = choose_rows(options)
    talk(f"{len(rows)} rows, {options.threads} threads, seed {options.seed}")
    begin = time.monotonic()
    for row in rows:
        progress(f"checking {row.set} {row.name()}")
        row.extra_mb = measure_extra_mb(row.ours, library, options.threads)
        prepare(row, lib, options.threads, options.seed)
        if row.wrong:
            talk(f"WRONG {row.set} {row.name()}: {row.wrong}")

    peaks = run_rounds(
        rows,
        options.rounds,
        begin + options.budget,
        lambda: sample_peak(options.build / "attune", options.threads),
        dice,
    )
    peak = statistics.median(peaks)
    results = [result_of(row, peak) for row in rows]
    # The two headline numbers are those of the core set where it was measured, else of everything.
    headline = [r["ratio"] for r in results if r["set"] == "core"] or [r["ratio"] for r in results]
    return {
        "rows": results,
        "geomean": geometric_mean(headline),
        "min": min(headline),
        "bars": [{"bar": b, "measured": m, "reached": bool(ok)} for b, m, ok in verdicts(results)],
        "wrong": sum(bool(r["wrong"]) for r in results),
        "peak_gflops": peak,
        "peak_gflops_max": max(peaks),
        "threads": options.threads,
        "seed": options.seed,
        "version": lib.version(),
        "torch": torch.__version__,
        "seconds": time.monotonic() - begin,
    }


def early_options(argv):
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--device", default="cpu")
    early.add_argument("--pass", default="forward", dest="what")
    return early.parse_known_args(argv)[0]


def main(argv=None):
    early = early_options(argv)
    if early.device == "cpu" and early.what == "backward":
        import compare_backward

        return compare_backward.main(argv)
    if early.device == "cuda":
        import compare_cuda

        return compare_cuda.main(argv)
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


if __name__ == "__main__":
    sys.exit(main())
