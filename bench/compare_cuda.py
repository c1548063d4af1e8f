"""Attune beside PyTorch's scaled_dot_product_attention backends on a GPU, in one process, and
beside FlashAttention-3 where its package (flash_attn_interface) is installed.

What makes the numbers worth something:
- every output is compared with float64 on sampled rows before anything is timed;
- CUDA events around each call, the second-level cache flushed before it, the GPU busy with that
  while the host enqueues the call: what is timed is the GPU's work, not Python's;
- a sample is the median of a burst of calls, after as much of the same to heat up: under load this
  GPU lowers its clock to keep its power, and each variant answers for its own;
- all variants of a shape take turns, in random order, on a warm GPU; the ratio is the median over
  the rounds, with a 95 % interval by order statistics (above 1: ours is faster);
- a backend that refuses a shape is shown as -, its reason is in the JSON;
- with --lse also the calls that return the LSE, as training needs it: ours and cuDNN's.
  FlashAttention-3 always computes it.

Sets of shapes:
{sets}

Examples:
  bench/compare_torch.py --device cuda
  bench/compare_torch.py --device cuda --set d64-4k,bf16-16k --json ratios.json --plot ratios.png
  bench/compare_torch.py --device cuda --set bf16-16k --backends cudnn
  bench/compare_torch.py --device cuda --set bf16-16k,d64-4k --backends cudnn,fa3 --lse
  bench/compare_torch.py --device cuda --shape 2x16x4096x128 --dtype bf16 --mode mma,fused
  bench/compare_torch.py --device cuda --set fp32 --accuracy
"""

import argparse
import contextlib
import math
import random
import shlex
import statistics
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import attune_ctypes  # noqa: E402
import torch  # noqa: E402
from cuda_report import accuracy_verdicts, print_tables, verdicts  # noqa: E402
from cuda_rows import (  # noqa: E402
    CUDNN_LSE,
    FA3,
    GROUPS,
    LSE,
    MODES,
    OLD_NAMES,
    PEERS,
    SETS,
    SHARED,
    TWINS,
    UNSHARED,
    Row,
    flops,
    input_bytes,
    key_bytes,
    math_bytes,
    rows_of,
    settle_sets,
)
from report import (  # noqa: E402
    add_common_options,
    deliver,
    error_of,
    geometric_mean,
    median_interval,
    progress,
    settle_common_options,
    talk,
)
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
DEVICE = "cuda"
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
# |result - float64| <= TOLERANCE * (1 + |float64|): four roundings of the dtype, 1e-5 for fp32.
TOLERANCE = {"f32": 1e-5, "f16": 2**-9, "bf16": 2**-6}
TORCH_BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
FLUSH_BYTES = 256 << 20
FLUSH_SECONDS = 0.0001  # what flushing takes, about
BURST_SECONDS = 0.05  # of calls that count, and as long before them
FEWEST_CALLS = 2
SHAPE_SECONDS = 3.0
MOST_ROUNDS = 6
FEWEST_ROUNDS = 3
HEAT_SECONDS = 2.0
MATH_BYTES = 30e9  # PyTorch's math backend is left out where its scores need more
CHECKED_SCORES = 2**27  # of the float64 reference, all heads together


# --- variants -------------------------------------------------------------------------------------


@dataclass
class Variant:
    """One competitor of a row: a function, and what became of it."""

    name: str
    run: object = None
    context: object = contextlib.nullcontext  # entered before the clock runs
    lse: object = None  # the tensor that a run fills, of ours with LSE
    refused: str = ""
    error: float = math.nan  # the largest against float64
    wrong: str = ""
    extra_mb: float = math.nan  # memory beyond inputs and outputs
    kernel: str = ""
    us: list = field(default_factory=list)
    host_us: list = field(default_factory=list)


def make_inputs(row, generator):
    batch, heads, heads_kv, seq_q, seq_k, dim, dim_v = attune_ctypes.parse_shape(row.shape)

    def values(*shape):
        return torch.randn(*shape, generator=generator, device=DEVICE).to(DTYPES[row.dtype])

    q = values(batch, heads, seq_q, dim)
    k = values(batch, heads_kv, seq_k, dim)
    v = values(batch, heads_kv, seq_k, dim_v)
    return q, k, v, values(batch, 1, seq_q, seq_k) if row.mask else None


def poisoned_output(q, v):
    return torch.full((*q.shape[:3], v.shape[3]), math.nan, dtype=q.dtype, device=q.device)


def free_bytes():
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]


def attune_variant(lib, name, mode, inputs, causal, window=0, lse=False, lengths=False):
    q, k, v, mask = inputs
    more = {} if mask is None else {"mask": mask}
    if lengths:  # that of all sequences: the work is the same
        more["key_lengths"] = torch.full(
            k.shape[:1], k.shape[2], dtype=torch.int32, device=k.device
        )
    if lse:
        more["lse"] = torch.full(q.shape[:3], math.nan, dtype=torch.float32, device=q.device)
    if window:
        more["window_left"] = window - 1
    variant = Variant(name, lse=more.get("lse"))
    try:
        call = attune_ctypes.CudaCall(
            lib,
            q,
            k,
            v,
            poisoned_output(q, v),
            mode=attune_ctypes.MODES[mode],
            causal=int(causal),
            alignment=attune_ctypes.ALIGNMENTS["top_left"],
            **more,
        )
        variant.kernel = lib.explain(call.args).get("chosen", "")
        before = free_bytes()
        call()
        grown = max(0, before - free_bytes())  # also by what the driver keeps for the kernel
    except (attune_ctypes.Error, torch.cuda.OutOfMemoryError) as error:
        variant.refused = str(error)
        return variant
    variant.run = call
    variant.extra_mb = (call.args.workspace_bytes + grown) / 2**20
    return variant


def torch_variant(name, inputs, causal):
    q, k, v, mask = inputs
    grouped = q.shape[1] != k.shape[1]
    variant = Variant(name, context=lambda: sdpa_kernel(TORCH_BACKENDS[name]))

    def run():
        return scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=grouped
        )

    return tried(variant, run)


def cudnn_lse_variant(inputs, causal):
    """The operator that PyTorch calls for training: scaled_dot_product_attention asks for the LSE
    only where gradients are recorded."""
    q, k, v, mask = inputs

    def run():
        return torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, mask, True, 0.0, causal)[
            0
        ]

    return tried(Variant(CUDNN_LSE), run)


def fa3_function():
    """FlashAttention-3's, or None where its package is not installed."""
    try:
        from flash_attn_interface import flash_attn_func
    except ImportError:
        return None
    return flash_attn_func


def fa3_variant(inputs, causal, window=0):
    q, k, v = (t.transpose(1, 2) for t in inputs[:3])
    if causal and q.shape[1] != k.shape[1]:
        return Variant(FA3, refused="its causal limit is at the bottom right")
    call, sides = fa3_function(), (window - 1, 0) if window else (-1, -1)

    def run():
        result = call(q, k, v, causal=causal, window_size=sides)
        out = result[0] if isinstance(result, tuple) else result  # some versions add the LSE
        return out.transpose(1, 2)

    return tried(Variant(FA3), run)


def tried(variant, run):
    """The variant with this function, or with the reason why it refuses."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            with variant.context():
                run()
            torch.cuda.synchronize()
            variant.run = run
        except RuntimeError as error:  # out of memory too
            reasons = [str(w.message).split(" (Triggered")[0] for w in said]
            variant.refused = "; ".join([*reasons, str(error).splitlines()[0]])
    return variant


def make_variants(lib, row, modes, backends, inputs, lse=False):
    """Ours first."""
    modes = row.modes or modes
    variants = [
        attune_variant(lib, mode, mode, inputs, row.causal, row.window, lengths=row.lengths)
        for mode in modes
    ]
    if row.twin():
        plain = twin_inputs(row, inputs)
        variants.append(attune_variant(lib, row.twin(), modes[0], plain, row.causal))
    if lse:
        variants.append(
            attune_variant(lib, LSE, modes[0], inputs, row.causal, row.window, lse=True)
        )
    if lse and "cudnn" in row.backends and "cudnn" in backends:
        variants.append(cudnn_lse_variant(inputs, row.causal))
    for name in [name for name in row.backends if name in backends]:
        if name == "math" and math_bytes(row) > MATH_BYTES:
            why = f"left out: it would need {math_bytes(row) / 1e9:.0f} GB"
            variants.append(Variant(name, refused=why))
        elif name == FA3 and (row.dtype == "f32" or row.mask):
            variants.append(Variant(name, refused="it has neither fp32 nor masks"))
        elif name == FA3:
            variants.append(fa3_variant(inputs, row.causal, row.window))
        else:
            variants.append(torch_variant(name, inputs, row.causal))
    return variants


def graphed(variant):
    """The variant as a CUDA graph: of calls that are shorter than the host's work only the GPU's
    time is left."""
    if variant.run is None:
        return variant
    call, graph = variant.run, torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call.on_stream(torch.cuda.current_stream())()

    def run():
        graph.replay()
        return out

    variant.run = run
    return variant


def twin_inputs(row, inputs):
    q, k, v, _ = inputs
    if row.twin() == UNSHARED:
        k, v = repeated(k, q.shape[1]), repeated(v, q.shape[1])
    return q, k, v, None


def repeated(keys, heads):
    """K or V with a head for every query head."""
    return keys.repeat_interleave(heads // keys.shape[1], dim=1)


# --- correctness ----------------------------------------------------------------------------------


def float64_scores(inputs, causal, rows, window=0):
    """Scores of the given query rows in double precision, one sequence of the batch a time."""
    q, k, _, mask = inputs
    heads, heads_kv = q.shape[1], k.shape[1]
    scale = 1 / math.sqrt(q.shape[3])
    ahead = torch.arange(k.shape[2], device=q.device)[None, :] - rows[:, None]  # of the row
    for b in range(q.shape[0]):
        grouped = q[b][:, rows].double().reshape(heads_kv, -1, q.shape[3])  # a group shares keys
        scores = grouped @ k[b].double().transpose(1, 2)
        scores = scores.mul_(scale).view(heads, len(rows), -1)
        if mask is not None:
            scores += mask[b, :, rows].double()
        if causal:  # top-left
            scores.masked_fill_(ahead > 0, -math.inf)
        if window:
            scores.masked_fill_(ahead <= -window, -math.inf)
        yield scores


def float64_rows(inputs, causal, rows, window=0):
    """The given query rows of every head."""
    q, k, v, _ = inputs
    result = []
    for b, scores in enumerate(float64_scores(inputs, causal, rows, window)):
        weights = torch.softmax(scores, dim=-1).view(k.shape[1], -1, k.shape[2])
        result.append((weights @ v[b].double()).view(q.shape[1], len(rows), -1))
    return torch.stack(result)


def float64_lse(inputs, causal, rows, window=0):
    return torch.stack([s.logsumexp(-1) for s in float64_scores(inputs, causal, rows, window)])


def sampled_rows(row, dice):
    """Indices of query rows: the first, the last, and random ones between."""
    batch, heads, _, seq_q, seq_k, _, _ = attune_ctypes.parse_shape(row.shape)
    most = max(4, min(128, CHECKED_SCORES // (batch * heads * seq_k)))
    if seq_q <= most:
        return list(range(seq_q))
    return sorted([0, seq_q - 1, *dice.sample(range(1, seq_q - 1), most - 2)])


def compare(out, expected, dtype):
    """The largest error, and what is wrong with the result ('' when nothing is)."""
    return error_of(out, expected, TOLERANCE[dtype], dtype)


def check_variants(row, variants, inputs, dice):
    """Fills in errors; says what is wrong. Ours may not refuse."""
    rows = torch.tensor(sampled_rows(row, dice), device=DEVICE)
    expected = float64_rows(inputs, row.causal, rows, row.window)
    plain = (*inputs[:3], None)
    found = [f"{variants[0].name}: {variants[0].refused}"] if variants[0].refused else []
    for variant in variants:
        if variant.run is None:
            continue
        with variant.context():
            out = variant.run()
        twin = variant.name in TWINS
        right = float64_rows(plain, row.causal, rows) if twin else expected
        variant.error, variant.wrong = compare(out[:, :, rows], right, row.dtype)
        if variant.lse is not None and not variant.wrong:
            right = float64_lse(inputs, row.causal, rows, row.window)
            _, wrong = compare(variant.lse[:, :, rows], right, row.dtype)
            variant.wrong = wrong and f"LSE: {wrong}"
        if variant.wrong:
            found.append(f"{variant.name}: {variant.wrong}")
    return "; ".join(found)


# --- measurement ----------------------------------------------------------------------------------


def heat(seconds):
    """Clocks and temperature settle before the first sample."""
    a = torch.randn(8192, 8192, device=DEVICE, dtype=torch.float16)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(10):
            a @ a
        torch.cuda.synchronize()


def burst(variant, flush, calls):
    """The median of so many calls, in microseconds, after as many that do not count; and what the
    host took for one."""
    events = []
    host = []
    with variant.context():
        for _ in range(2 * calls):
            start = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            flush.zero_()
            start.record()
            begin = time.perf_counter()
            variant.run()
            host.append(time.perf_counter() - begin)
            end.record()
            events.append((start, end))
    torch.cuda.synchronize()
    times = [1e3 * start.elapsed_time(end) for start, end in events[calls:]]
    return statistics.median(times), 1e6 * statistics.median(host[calls:])


def calls_of(seconds_a_call):
    return max(FEWEST_CALLS, int(BURST_SECONDS / (seconds_a_call + FLUSH_SECONDS)))


def plan_rounds(seconds_a_call, seconds, most):
    """How many rounds each takes part in: the first ones, so that all pairs are whole."""
    share = seconds / len(seconds_a_call)
    return {
        name: max(
            min(FEWEST_ROUNDS, most),
            min(most, int(share / (2 * calls_of(each) * (each + FLUSH_SECONDS)))),
        )
        for name, each in seconds_a_call.items()
    }


def measure(variants, flush, seconds, most, dice, burst=burst):
    able = [v for v in variants if v.run is not None]
    each = {v.name: 1e-6 * burst(v, flush, 1)[0] for v in able}
    rounds = plan_rounds(each, seconds, most)
    for done in range(max(rounds.values())):
        order = [v for v in able if done < rounds[v.name]]
        dice.shuffle(order)
        for variant in order:
            us, host_us = burst(variant, flush, calls_of(each[variant.name]))
            variant.us.append(us)
            variant.host_us.append(host_us)


def of_nvidia_smi(*fields):
    """What nvidia-smi says right now; '' where it cannot."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        result = subprocess.run(command, capture_output=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.decode().strip()


def clocks():
    return of_nvidia_smi("clocks.sm", "power.draw", "temperature.gpu")


# --- results --------------------------------------------------------------------------------------


def ratio_to(ours, peer):
    """The median of peer / ours over their common rounds, and its interval."""
    pairs = list(zip(ours.us, peer.us, strict=False))
    ratio, interval = median_interval([theirs / mine for mine, theirs in pairs])
    return {"ratio": ratio, "ci": interval}


def main_peer(row, ratios):
    """Whom the row's ratio is about: (name, ratio) or (None, None)."""
    if row.twin():
        candidates = [row.twin()]
    elif row.set == "decode":
        candidates = sorted(
            (n for n in ("flash", "cudnn") if n in ratios), key=lambda n: ratios[n]["ratio"]
        )
    else:
        candidates = ["flash", "cudnn", "efficient", "fused", "math"]
    return next(((name, ratios[name]) for name in candidates if name in ratios), (None, None))


def result_of(row, variants, wrong):
    ours = variants[0]
    ratios = {
        v.name: ratio_to(ours, v) for v in variants[1:] if v.us and ours.us and v.name != CUDNN_LSE
    }
    with_lse = next((v for v in variants if v.name == LSE and v.us), None)
    lse_ratios = {
        v.name: ratio_to(with_lse, v)
        for v in variants
        if with_lse and v.us and v.name in (CUDNN_LSE, FA3)
    }
    peer, against = main_peer(row, ratios)

    def figures(variant):
        if not variant.us:
            return {"refused": variant.refused or variant.wrong}
        median = statistics.median(variant.us)
        return {
            "us": median,
            "tflops": flops(row) / median / 1e6,
            "tb_s": key_bytes(row) / median / 1e6,
            "host_us": statistics.median(variant.host_us),
            "samples": len(variant.us),
            "max_err": variant.error,
            "extra_mb": variant.extra_mb,
            "kernel": variant.kernel,
        }

    return {
        "set": row.set,
        "shape": row.shape,
        "dtype": row.dtype,
        "causal": row.causal,
        "mask": row.mask,
        "window": row.window,
        "lengths": row.lengths,
        "ours": ours.name,
        "peer": peer,
        "ratio": against and against["ratio"],
        "ci": against and against["ci"],
        "variants": {v.name: figures(v) for v in variants},
        "ratios": ratios,
        "lse_ratios": lse_ratios,  # to ours with LSE
        "input_mb": input_bytes(row) / 2**20,
        "wrong": wrong,
    }


def compare_row(lib, row, options, dice, flush):
    """One row of the report. What it allocates is gone when it returns."""
    generator = torch.Generator(DEVICE).manual_seed(dice.randrange(2**31))
    inputs = make_inputs(row, generator)
    variants = make_variants(lib, row, options.modes, options.backends, inputs, options.lse)
    if row.lengths:
        variants = [graphed(variant) for variant in variants]
    wrong = check_variants(row, variants, inputs, dice)
    if not wrong:
        measure(variants, flush, SHAPE_SECONDS, options.rounds, dice)
    return result_of(row, variants, wrong)


# --- fp32 accuracy --------------------------------------------------------------------------------


def _normal(q, k, v, rand):
    pass


def _scaled(factor):
    def scale(q, k, v, rand):
        for tensor in (q, k, v):
            tensor.mul_(factor)

    return scale


def _peaked(q, k, v, rand):
    """Row i points along one key."""
    rows = torch.arange(q.shape[2], device=q.device)
    q.copy_(4 * repeated(k, q.shape[1])[:, :, rows * 7 % k.shape[2]])


def _mixed(q, k, v, rand):
    """Magnitudes that differ from row to row, log-normally."""
    for tensor, spread in ((q, 1), (k, 1), (v, 4)):
        tensor.mul_(torch.exp(spread * rand(*tensor.shape[:3], 1)))


def _v_blocks(q, k, v, rand):
    """Blocks of 64 rows of V between 2^-20 and 2^20, one of them 0."""
    blocks = (v.shape[2] + 63) // 64
    exponents = (rand(*v.shape[:2], blocks, 1) * 10).round().clamp(-20, 20)
    v.mul_(torch.exp2(exponents.repeat_interleave(64, dim=2)[:, :, : v.shape[2]]))
    v[:, :, 64:128] = 0


def _v_tiny(q, k, v, rand):
    v.mul_(1e-30)


def _v_mean(q, k, v, rand):
    """Sums that all have one sign, where a bias would show."""
    v.add_(1)


def _growing(q, k, v, rand):
    """Maxima that grow toward the first key: Hopper's rung begins with the last."""
    k.mul_(torch.linspace(4, 0.1, k.shape[2], device=k.device)[:, None])


FP32_INPUTS = {
    "normal": _normal,
    "peaked": _peaked,
    "tiny": _scaled(1e-4),
    "huge": _scaled(1e4),
    "x8": _scaled(8.0),
    "mixed": _mixed,
    "v_blocks": _v_blocks,
    "v_tiny": _v_tiny,
    "v_mean": _v_mean,
    "growing": _growing,
}
DRAWS = 4  # of each kind of input: what a single weight decides is luck in one
ACCURACY_SHAPES = ("4x8x1024x64", "2x4x1000x128")
# Where sums are longer: N(0,1), and V with a mean, without causal.
LONGER_SHAPES = ("4x8x512x64", "4x8x4096x64", "1x1x131072x64", "1x1x131072x128")


def fp32_inputs(kind, shape, seed):
    """q, k, v on the GPU: N(0,1), then what the kind does to them."""
    batch, heads, heads_kv, seq_q, seq_k, dim, dim_v = attune_ctypes.parse_shape(shape)
    generator = torch.Generator(DEVICE).manual_seed(seed)

    def rand(*size):
        return torch.randn(*size, generator=generator, device=DEVICE)

    q, k = rand(batch, heads, seq_q, dim), rand(batch, heads_kv, seq_k, dim)
    v = rand(batch, heads_kv, seq_k, dim_v)
    FP32_INPUTS[kind](q, k, v, rand)
    return q, k, v


def errors_of(out, expected):
    """The largest error, and the error's norm as a part of the result's."""
    error = out.double() - expected
    largest, norm = error.abs().max().item(), (error.norm() / expected.norm()).item()
    return largest if math.isfinite(largest) else math.inf, norm if norm == norm else math.inf


def accuracy_row(lib, kind, shape, causal, modes, seed, draws=1):
    """Errors against float64 of ours and of PyTorch's fp32 on the same inputs: of all draws the
    largest, and the root of the norms' mean square."""
    rows = [one_draw(lib, kind, shape, causal, modes, seed + n) for n in range(draws)]
    merged = rows[0]
    for name in merged["errors"]:
        merged["errors"][name] = max(r["errors"][name] for r in rows)
        squares = [r["norms"][name] ** 2 for r in rows]
        merged["norms"][name] = math.sqrt(sum(squares) / draws)
    merged["largest"] = max(r["largest"] for r in rows)
    return merged


def one_draw(lib, kind, shape, causal, modes, seed):
    q, k, v = fp32_inputs(kind, shape, seed)
    inputs = (q, k, v, None)
    ungrouped = (q, repeated(k, q.shape[1]), repeated(v, q.shape[1]), None)
    long = q.shape[2] > 16384  # some rows then, and no scores in memory
    rows = torch.arange(0, q.shape[2], 341 if long else 1, device=DEVICE)
    expected = float64_rows(inputs, causal, rows)
    variants = [attune_variant(lib, mode, mode, inputs, causal) for mode in modes]
    peers = ("efficient",) if long else ("efficient", "math")
    variants += [torch_variant(name, ungrouped, causal) for name in peers]
    errors, norms = {}, {}
    for variant in variants:
        if variant.run is not None:
            with variant.context():
                out = variant.run()[:, :, rows]
            errors[variant.name], norms[variant.name] = errors_of(out, expected)
    return {
        "kind": kind,
        "shape": shape,
        "causal": causal,
        "ours": modes[0],
        "errors": errors,
        "norms": norms,
        "refused": {v.name: v.refused for v in variants if v.refused},
        "largest": expected.abs().max().item(),
    }


def accuracy(lib, modes, seed):
    cases = [
        (kind, shape, causal)
        for kind in FP32_INPUTS
        for shape in ACCURACY_SHAPES
        for causal in (False, True)
    ]
    cases += [(kind, shape, False) for shape in LONGER_SHAPES for kind in ("normal", "v_mean")]
    return [accuracy_row(lib, *case, modes, seed, DRAWS) for case in cases]


# --- the command ----------------------------------------------------------------------------------


def names_of(parser, option, text, known, hidden=()):
    """A list with commas, each a known or hidden name. A mistake is answered with those known."""
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in known and name not in hidden:
            parser.error(f"{option}: '{name}' is not one of {', '.join(known)}")
    if not names:
        parser.error(f"{option}: nothing is named")
    return names


def described_sets():
    about = {shared["name"]: shared["about"] for shared in SHARED} | {
        "mask-additive": "fp16 and bf16 with an additive mask, against our own time without it",
        "window-1k": "bf16, causal, 1024 of 16384 keys, against our own time with all keys",
        "lengths": "decoding with a tensor of lengths, against our own time with a common one",
        "ladder": "every kernel of the ladder, fp32 and fp16, S=512 to 2048",
    }
    about |= {name: "all of " + ", ".join(parts) for name, parts in GROUPS.items()}
    return "\n".join(f"  {name:<14} {about[name]}" for name in (*SETS, *GROUPS))


def parse_options(argv):
    parser = argparse.ArgumentParser(
        prog="compare_torch.py --device cuda",
        description=__doc__.replace("{sets}", described_sets()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", default="cuda", choices=["cuda"])
    parser.add_argument(
        "--set",
        action="append",
        dest="sets",
        metavar="NAME,...",
        help="measure these sets (may be repeated); all by default",
    )
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        dest="shapes",
        help="BxHxSxD (H/Hkv, Sq/Sk, D/Dv) instead of the sets, causal and not; may be repeated",
    )
    parser.add_argument("--dtype", default="f16", help="of --shape: f32, f16, bf16 (default f16)")
    parser.add_argument(
        "--mode",
        default="auto",
        help=f"ours: {', '.join(MODES)}; with several, ratios are to the first (default auto)",
    )
    parser.add_argument(
        "--backends",
        default=",".join(PEERS),
        help=f"of PyTorch, and FlashAttention-3 (default {','.join(PEERS)})",
    )
    parser.add_argument(
        "--lse", action="store_true", help="also calls with LSE: ours, cuDNN's, FlashAttention-3's"
    )
    parser.add_argument(
        "--rounds", type=int, default=MOST_ROUNDS, help=f"bursts, at most (default {MOST_ROUNDS})"
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=230,
        help="seconds in all, after which no row begins (default 230)",
    )
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument(
        "--accuracy", action="store_true", help="also fp32 errors on difficult inputs, with bars"
    )
    add_common_options(parser, ROOT)
    options = parser.parse_args(argv)
    given = sys.argv[1:] if argv is None else argv
    options.command = shlex.join(["bench/compare_torch.py", *given])
    if options.rounds < 1:
        parser.error(f"--rounds: {options.rounds} is not positive")
    known = (*SETS, *GROUPS)
    sets = names_of(parser, "--set", ",".join(options.sets or SETS), known, OLD_NAMES)
    options.sets = settle_sets(sets)
    options.modes = tuple(dict.fromkeys(names_of(parser, "--mode", options.mode, MODES)))
    options.backends = names_of(parser, "--backends", options.backends, PEERS)
    dtypes = ",".join(map(attune_ctypes.dtype_name, options.dtype.split(",")))
    options.dtypes = names_of(parser, "--dtype", dtypes, tuple(DTYPES))
    for shape in options.shapes:
        try:
            attune_ctypes.parse_shape(shape)
        except ValueError as error:
            parser.error(f"--shape: {error}")
    settle_common_options(parser, options)
    if not torch.cuda.is_available():
        parser.error(f"there is no CUDA device that PyTorch {torch.__version__} can use here")
    if FA3 in options.backends and fa3_function() is None:
        options.backends.remove(FA3)
        talk("FlashAttention-3 is left out: there is no package flash_attn_interface")
    return options


def choose_rows(options):
    if options.shapes:
        return [
            Row("custom", shape, dtype, causal)
            for shape in options.shapes
            for dtype in options.dtypes
            for causal in (False, True)
        ]
    return [row for name in options.sets for row in rows_of(name)]


def compare_all(options):
    begin = time.monotonic()
    lib = attune_ctypes.load(options.build / "libattune.so")
    dice = random.Random(options.seed)
    rows = choose_rows(options)
    device = torch.cuda.get_device_name()
    talk(f"{len(rows)} rows on {device}, seed {options.seed}")
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=DEVICE)
    errors = accuracy(lib, options.modes, options.seed) if options.accuracy else []
    heat(HEAT_SECONDS)
    clocks_begin = clocks()
    results, unreached = [], []
    for row in rows:
        if time.monotonic() - begin > options.budget:
            unreached.append(row.name())
            continue
        progress(row.name())
        results.append(compare_row(lib, row, options, dice, flush))
        torch.cuda.empty_cache()
        if results[-1]["wrong"]:
            talk(f"WRONG {row.name()}: {results[-1]['wrong']}")
    clocks_end = clocks()
    progress("")
    if unreached:
        talk(f"the budget of {options.budget:g} s left {len(unreached)} rows unmeasured")
    ratios = [r["ratio"] for r in results if r["ratio"] is not None and r["peer"] not in TWINS]
    bars = verdicts(results) + accuracy_verdicts(errors)
    return {
        "rows": results,
        "accuracy": errors,
        "geomean": geometric_mean(ratios) if ratios else None,
        "min": min(ratios, default=None),
        "bars": [{"bar": b, "measured": m, "reached": bool(ok)} for b, m, ok in bars],
        "wrong": sum(bool(r["wrong"]) for r in results),
        "unreached": unreached,
        "device": device,
        "date": time.strftime("%Y-%m-%d"),
        "command": options.command,
        "driver": of_nvidia_smi("driver_version").split("\n")[0],
        "cuda": torch.version.cuda,
        "clocks_begin": clocks_begin,
        "clocks_end": clocks_end,
        "seed": options.seed,
        "version": lib.version(),
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "seconds": time.monotonic() - begin,
    }


def main(argv=None):
    options = parse_options(argv)
    try:
        with torch.no_grad():
            report = compare_all(options)
        title = f"Attune {report['version']} and PyTorch {report['torch']}, {report['device']}"
        return deliver(report, title, options, print_tables)
    except KeyboardInterrupt:
        return 130
    except (OSError, attune_ctypes.Error) as error:
        talk(f"compare_torch: {error}")
        return 1
