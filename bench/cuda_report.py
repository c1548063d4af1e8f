"""The comparison on a GPU, told: verdicts on the project's bars, and the tables."""

import math

import attune_ctypes
from cuda_rows import (
    COMMON,
    CUDNN_LSE,
    FA3,
    LADDER,
    LSE,
    MODES,
    PEERS,
    TWINS,
    UNMASKED,
    UNSHARED,
    WHOLE,
    cudnn_requirement,
    rows_of,
    window_share,
)
from report import geometric_mean, print_bars

# --- bars -----------------------------------------------------------------------------------------


def label(result):
    return f"{result['shape']} {result['dtype']}{' causal' if result['causal'] else ''}"


def seq_of(result):
    return max(attune_ctypes.parse_shape(result["shape"])[3:5])


def dim_of(result):
    return attune_ctypes.parse_shape(result["shape"])[5]


def bar_name(what, bar, measured, whole):
    missing = "" if measured == whole else f" [not the bar itself: {measured} of {whole} rows]"
    return f"{what}: {bar}{missing}"


def spread(ratio):
    return f"{ratio['ratio']:.3f} ({ratio['ci'][0]:.3f}..{ratio['ci'][1]:.3f})"


def flash_bars(results):
    rows = [r for r in results if r["set"] in ("d64-4k", "bf16-16k") and dim_of(r) in (64, 128)]
    rows = [r for r in rows if "flash" in r["ratios"]]
    if not rows:
        return []
    whole = len(rows_of("d64-4k")) + len(rows_of("bf16-16k")) * 2 // 3
    what = "d64-4k and bf16-16k, D=64,128"
    low = min(rows, key=lambda r: r["ratios"]["flash"]["ratio"])
    mean = geometric_mean([r["ratios"]["flash"]["ratio"] for r in rows])
    return [
        (
            bar_name(what, "each >= 0.98x PyTorch's flash backend", len(rows), whole),
            f"{label(low)}: {spread(low['ratios']['flash'])}",
            low["ratios"]["flash"]["ratio"] >= 0.98,
        ),
        (
            bar_name(what, "geometric mean >= 1.05x", len(rows), whole),
            f"{mean:.3f}",
            mean >= 1.05,
        ),
    ]


def cudnn_bars(results):
    """Each row's ratio to cuDNN beside the required one, and beside FlashAttention-3's."""
    bars = []
    for r in results:
        line = cudnn_requirement(r["set"], r["shape"], r["causal"])
        if line is None or "cudnn" not in r["ratios"]:
            continue
        ratio = r["ratios"]["cudnn"]
        lowest = max(x for x in line if x is not None)
        fa3 = "" if line[1] is None else f", FlashAttention-3 {line[1]:.3f}"
        name = f"{r['set']} {label(r)}: >= {lowest:.3f}x cuDNN (required {line[0]:.3f}{fa3})"
        bars.append((name, spread(ratio), ratio["ratio"] >= lowest))
    return bars


LSE_SHARE = 0.97  # of our own speed without LSE
D256_LEAD = 1.03  # of FlashAttention-3 at D=256
CHUNK, CHUNK_LEAD = "1x32/8x512/8192x128", 1.05  # a chunk of a long prompt, beside the best peer
LENGTHS_COST = 1.03  # of a tensor of lengths, beside one common length


def fa3_line(result):
    """FlashAttention-3's ratio to cuDNN where both were measured, or None."""
    line = cudnn_requirement(result["set"], result["shape"], result["causal"])
    return line and line[1]


def lse_bars(results):
    """Calls with LSE beside FlashAttention-3, which always computes it, and beside our own without.
    FlashAttention-3's time is its line beside cuDNN; where there is none, that of this run."""
    rows = [r for r in results if LSE in r["ratios"]]
    bars = []
    for r in rows:
        line, cost = fa3_line(r), r["ratios"][LSE]["ratio"]
        if line is not None and "cudnn" in r["ratios"]:
            lead = r["ratios"]["cudnn"]["ratio"] / cost / line
        elif FA3 in r["lse_ratios"]:
            lead = r["lse_ratios"][FA3]["ratio"]
        else:
            continue
        name = f"{r['set']} {label(r)}, with LSE: at or above FlashAttention-3's line"
        bars.append((name, f"{lead:.3f}", lead >= 1))
    if rows:
        slow = max(rows, key=lambda r: r["ratios"][LSE]["ratio"])
        share = 1 / slow["ratios"][LSE]["ratio"]
        name = f"with LSE, {len(rows)} rows: each >= {LSE_SHARE}x our own speed without"
        bars.append((name, f"{slow['set']} {label(slow)}: {share:.3f}", share >= LSE_SHARE))
    return bars


def d256_bars(results):
    bars = []
    for r in results:
        line = fa3_line(r)
        if dim_of(r) != 256 or seq_of(r) < 2048 or line is None or "cudnn" not in r["ratios"]:
            continue
        lead = r["ratios"]["cudnn"]["ratio"] / line
        name = f"{r['set']} {label(r)}: >= {D256_LEAD}x FlashAttention-3's line"
        bars.append((name, f"{lead:.3f}", lead >= D256_LEAD))
    return bars


def chunk_bars(results):
    bars = []
    for r in results:
        ratios = [r["ratios"][name] for name in ("cudnn", FA3) if name in r["ratios"]]
        if r["shape"] == CHUNK and ratios:
            best = min(ratios, key=lambda ratio: ratio["ratio"])
            name = f"{r['set']} {label(r)}: >= {CHUNK_LEAD}x the better of cuDNN and FA3"
            bars.append((name, spread(best), best["ratio"] >= CHUNK_LEAD))
    return bars


def decode_bars(results):
    rows = [r for r in results if r["set"] == "decode" and r["ratio"] is not None]
    if not rows:
        return []
    whole = len(rows_of("decode"))
    low = min(rows, key=lambda r: r["ratio"])
    bars = [
        (
            bar_name("decode", "each >= 0.97x the better of flash and cuDNN", len(rows), whole),
            f"{label(low)} vs {low['peer']}: {spread(low)}",
            low["ratio"] >= 0.97,
        )
    ]
    for r in rows:
        if r["shape"] == "1x32/8x1/4096x128":
            bars.append(
                (
                    "decode, 1 x 4096: ahead of flash and cuDNN",
                    f"vs {r['peer']}: {spread(r)}",
                    r["ratio"] > 1,
                )
            )
        if r["shape"] == "64x32/8x1/8192x128":
            speed = r["variants"][r["ours"]]["tb_s"]
            bars.append(
                ("decode, 64 x 8192: >= 4.3 TB/s of K and V", f"{speed:.2f} TB/s", speed >= 4.3)
            )
    return bars


def fp32_bars(results):
    bars = []
    rows = [r for r in results if r["set"] == "fp32-d64" and seq_of(r) >= 512]
    rows = [r for r in rows if "efficient" in r["ratios"]]
    if rows:
        low = min(rows, key=lambda r: r["ratios"]["efficient"]["ratio"])
        bars.append(
            (
                bar_name("fp32-d64, S >= 512", "each >= 2.0x memory-efficient fp32", len(rows), 4),
                f"{label(low)}: {spread(low['ratios']['efficient'])}",
                low["ratios"]["efficient"]["ratio"] >= 2.0,
            )
        )
    for r in results:
        if r["set"] != "fp32-long" or seq_of(r) != 131072:
            continue
        if "efficient" in r["ratios"]:
            ratio = r["ratios"]["efficient"]
            bars.append(
                (
                    "fp32-long, S=131072: at most half of PyTorch's time",
                    f"{spread(ratio)} times as fast",
                    ratio["ratio"] >= 2.0,
                )
            )
        bars += memory_bars(r)
    return bars


# Times as fast as memory-efficient fp32 on Hopper: what experiments with the split kernel measured,
# less a margin; causal rows need 0.9 of it.
HOPPER_FP32 = {
    "4x8x512x64": 3.3,
    "4x8x1024x64": 5.0,
    "4x8x2048x64": 5.4,
    "4x8x4096x64": 5.6,
    "2x16x2048x128": 4.2,
    "2x16x8192x128": 4.6,
}
HOPPER_LONGEST_MS = 40.0  # 1x1x131072x128


def hopper_fp32_bars(results):
    """Of rows that wgmma computed."""
    bars = []
    for r in results:
        kernel = r["variants"][r["ours"]].get("kernel", "")
        if r["set"] not in ("fp32-long", "fp32-d64", "fp32-mixed") or "/wgmma" not in kernel:
            continue
        required = HOPPER_FP32.get(r["shape"])
        if required is not None and "efficient" in r["ratios"]:
            required *= 0.9 if r["causal"] else 1.0
            ratio = r["ratios"]["efficient"]
            name = f"{r['set']} {label(r)}: >= {required:.2f}x memory-efficient fp32"
            bars.append((name, spread(ratio), ratio["ratio"] >= required))
        if r["shape"] == "1x1x131072x128":
            ms = r["variants"][r["ours"]].get("us", math.inf) / 1000
            bars.append(
                (
                    f"fp32-long, S=131072: <= {HOPPER_LONGEST_MS:.0f} ms",
                    f"{ms:.1f} ms",
                    ms <= HOPPER_LONGEST_MS,
                )
            )
    return bars


def memory_bars(result):
    """Beyond inputs and outputs; the CUDA-core kernel has a limit of its own."""
    bars = []
    for name, figures in result["variants"].items():
        extra = figures.get("extra_mb", math.nan)
        if not math.isfinite(extra) or name in PEERS or name in ("naive", "tiled"):
            continue
        limit = 64 if name == "fused" else 2 * result["input_mb"]
        what = "64 MB" if name == "fused" else f"twice the inputs ({limit:.0f} MB)"
        bars.append(
            (
                f"fp32-long, S=131072, {name}: extra memory below {what}",
                f"{extra:.1f} MB",
                extra < limit,
            )
        )
    return bars


def mask_bars(results):
    rows = [r for r in results if r["set"] == "mask-additive" and UNMASKED in r["ratios"]]
    if not rows:
        return []
    slow = min(rows, key=lambda r: r["ratios"][UNMASKED]["ratio"])
    ratio = slow["ratios"][UNMASKED]
    low, high = ratio["ci"]
    return [
        (
            bar_name(
                "mask-additive",
                "at most 1.3x the unmasked time",
                len(rows),
                len(rows_of("mask-additive")),
            ),
            f"{label(slow)}: {1 / ratio['ratio']:.3f} ({1 / high:.3f}..{1 / low:.3f})",
            1 / ratio["ratio"] <= 1.3,
        )
    ]


def twin_bars(results):
    """Rows beside our own time without what makes them special."""
    bars = []
    for r in results:
        if UNSHARED in r["ratios"]:
            ratio = r["ratios"][UNSHARED]
            name = f"{r['set']} {label(r)}: no slower than heads with keys of their own"
            bars.append((name, spread(ratio), ratio["ratio"] >= 1))
        if WHOLE in r["ratios"]:
            share = window_share(r["shape"], r["window"])
            cost = 1 / (r["ratios"][WHOLE]["ratio"] * share)
            name = f"{r['set']} {label(r)}: at most 1.3x its share of the time without a window"
            bars.append((name, f"{cost:.3f}", cost <= 1.3))
        if COMMON in r["ratios"]:
            cost = 1 / r["ratios"][COMMON]["ratio"]
            name = f"{r['set']} {label(r)}: at most {LENGTHS_COST}x the time of a common length"
            bars.append((name, f"{cost:.3f}", cost <= LENGTHS_COST))
    return bars


def ladder_bars(results):
    """For each pair of neighbours the row where the faster one gains least."""
    rows = [r for r in results if r["set"] == "ladder" and seq_of(r) >= 512]
    if not rows:
        return []
    least, where = math.inf, ""
    for r in rows:
        rungs = [name for name in LADDER if name in r["variants"]]
        times = {name: r["variants"][name].get("us") for name in rungs}
        for slow, fast in zip(rungs, rungs[1:], strict=False):
            known = times[slow] is not None and times[fast] is not None
            gain = times[slow] / times[fast] if known else 0.0
            if gain < least:
                least, where = gain, f"{label(r)}: {fast} is {gain:.2f}x {slow}"
    name = bar_name(
        "ladder, S >= 512",
        "speed " + " < ".join(LADDER),
        len(rows),
        len(rows_of("ladder")),
    )
    return [(name, where, least > 1)]


def accuracy_verdicts(rows):
    bars = []
    normal = [r for r in rows if r["kind"] == "normal"]
    if normal:
        worst = max(r["errors"].get(r["ours"], math.inf) for r in normal)
        bars.append(("fp32, N(0,1): error <= 1e-5 against float64", f"{worst:.1e}", worst <= 1e-5))
    for what, key, limit in (("largest error", "errors", 2), ("norm of the error", "norms", 1)):
        judged = [
            (r[key].get(r["ours"], math.inf) / max(r[key]["efficient"], 1e-300), r)
            for r in rows
            if "efficient" in r[key]
        ]
        if judged:
            most, row = max(judged, key=lambda pair: pair[0])
            over = sum(ratio > 1 for ratio, _ in judged)
            bars.append(
                (
                    f"fp32, {len({r['kind'] for _, r in judged})} kinds of input: {what} <= "
                    f"{limit}x that of PyTorch's memory-efficient fp32",
                    f"{row['kind']} {row['shape']}{' causal' if row['causal'] else ''}: "
                    f"{most:.2f}x; {over} of {len(judged)} above 1x",
                    most <= limit,
                )
            )
    return bars


def verdicts(results):
    """The bars of the project, as (bar, measured, reached)."""
    right = [r for r in results if not r["wrong"]]
    parts = (
        flash_bars,
        cudnn_bars,
        lse_bars,
        d256_bars,
        chunk_bars,
        decode_bars,
        fp32_bars,
        hopper_fp32_bars,
        mask_bars,
        twin_bars,
        ladder_bars,
    )
    return [bar for part in parts for bar in part(right)]


# --- output ---------------------------------------------------------------------------------------


def columns_of(results):
    """Beside ours: every variant that some row has, in a fixed order."""
    order = (*TWINS, *MODES, *PEERS)
    seen = {name for r in results for name in r["variants"] if name != r["ours"]}
    return [name for name in order if name in seen]


def cell(result, name, ratios="ratios"):
    figures = result["variants"].get(name, {})
    if "us" not in figures:
        return "-"
    ratio = result[ratios].get(name)
    return f"{figures['us']:.1f} ({ratio['ratio']:.2f})" if ratio else f"{figures['us']:.1f}"


def print_results(results, out):
    columns = columns_of(results)
    head = ["set", "shape", "dtype", "causal", "ours", "us", "TFLOP/s", "TB/s", "against", "ratio"]
    head += ["95 % interval", *(f"{name} us (ratio)" for name in columns), "extra MB", "max err"]
    print("| " + " | ".join(head) + " |", file=out)
    sides = [":--"] * 5 + ["--:"] * 3 + [":--", "--:", ":--"] + ["--:"] * (len(columns) + 2)
    print("|" + "|".join(sides) + "|", file=out)
    for r in results:
        ours = r["variants"][r["ours"]]
        window = f" window {r['window']}" if r["window"] else ""
        special = (" mask" if r["mask"] else "") + window + (" lengths" if r["lengths"] else "")
        cells = [r["set"], r["shape"] + special, r["dtype"]]
        cells += [str(int(r["causal"])), r["ours"]]
        if "us" in ours:
            speed = f"{ours['tb_s']:.2f}" if r["set"] in ("decode", "lengths") else ""
            cells += [f"{ours['us']:.1f}", f"{ours['tflops']:.1f}", speed]
        else:
            cells += ["WRONG" if r["wrong"] else "-", "", ""]
        if r["ratio"] is not None:
            low, high = r["ci"]
            cells += [r["peer"], f"{r['ratio']:.3f}", f"{low:.3f}..{high:.3f}"]
        else:
            cells += ["", "", ""]
        cells += [cell(r, name) for name in columns]
        if "us" in ours:
            cells += [f"{ours['extra_mb']:.1f}", f"{ours['max_err']:.1e}"]
        else:
            cells += ["", ""]
        print("| " + " | ".join(cells) + " |", file=out)


def print_lse(results, out):
    """Calls that return the LSE; ratios are to ours with LSE."""
    columns = (CUDNN_LSE, FA3)
    head = ["with LSE", "shape", "dtype", "causal", "us", "TFLOP/s"]
    print("| " + " | ".join(head + [f"{name} us (ratio)" for name in columns]) + " |", file=out)
    print("|:--|:--|:--|--:|" + "--:|" * (2 + len(columns)), file=out)
    for r in results:
        ours = r["variants"][LSE]
        speed = f"{ours['tflops']:.1f}" if "us" in ours else "-"
        cells = [r["set"], r["shape"], r["dtype"], str(int(r["causal"]))]
        cells += [f"{ours['us']:.1f}" if "us" in ours else "-", speed]
        cells += [cell(r, name, "lse_ratios") for name in columns]
        print("| " + " | ".join(cells) + " |", file=out)


def print_accuracy(rows, out):
    """For each the largest error, then the error's norm as a part of the result's."""
    names = list(dict.fromkeys(name for r in rows for name in r["errors"]))
    print("| fp32 input | shape | causal | " + " | ".join(names) + " | largest |", file=out)
    print("|:--|:--|:--|" + "--:|" * (len(names) + 1), file=out)
    for r in rows:
        errors = [
            f"{r['errors'][n]:.1e}, {r['norms'][n]:.1e}" if n in r["errors"] else "-" for n in names
        ]
        print(
            f"| {r['kind']} | {r['shape']} | {int(r['causal'])} | "
            + " | ".join(errors)
            + f" | {r['largest']:.1e} |",
            file=out,
        )


def print_tables(report, out):
    if report["rows"]:
        print_results(report["rows"], out)
        print(file=out)
    with_lse = [r for r in report["rows"] if LSE in r["variants"]]
    if with_lse:
        print_lse(with_lse, out)
        print(file=out)
    if report["accuracy"]:
        print_accuracy(report["accuracy"], out)
        print(file=out)
    if report["geomean"] is not None:
        print(
            f"geometric mean {report['geomean']:.3f}, min {report['min']:.3f}", end="; ", file=out
        )
    print(
        f"{report['device']}, PyTorch {report['torch']}, cuDNN {report['cudnn']}, "
        f"clocks {report['clocks_end'] or 'unknown'}, {report['seconds']:.0f} s\n",
        file=out,
    )
    print_bars(report["bars"], out)
    for name in report["unreached"]:
        print(f"not reached: {name}", file=out)
