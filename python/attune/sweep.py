"""Every way to compute one attention call here, by speed: torch's backends and switches, and ours.

    python -m attune.sweep [--shape 1x8x512x64] [--device cuda] [--out FILE]

Each variant is held against float64 (and against torch's default, which is max_diff), then all of
them are timed together, taking turns, in three repetitions. fitness is torch's default time over
the variant's, measured in this run; a variant that is wrong has fitness 0.

Exit code: 0 something of ours is faster than torch's default, 1 nothing is, 2 bad usage.
"""

import argparse
import contextlib
import functools
import json
import statistics
import subprocess
import sys
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as torch_sdpa

from . import _library, _timing, _tool
from ._functions import attention, scaled_dot_product_attention

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32}
LIMIT = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 1e-5}
BASELINE = "sdpa_default"


def _by_hand(q, k, v, is_causal=False):
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if is_causal:
        keep = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~keep, -torch.inf)
    return scores.softmax(-1) @ v


@contextlib.contextmanager
def _switched(owner, name):
    before = getattr(owner, name)
    setattr(owner, name, True)
    try:
        yield
    finally:
        setattr(owner, name, before)


@functools.cache
def _torch_dies_of_bf16():
    """On processors that promise AMX and do not keep it, torch's bf16 attention is an illegal
    instruction: better in another process than here."""
    code = (
        "import torch; x = torch.ones(1, 8, 512, 64).bfloat16();"
        "torch.nn.functional.scaled_dot_product_attention(x, x, x)"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode < 0


def _in_bf16(q, k, v, is_causal=False):
    if q.device.type == "cpu" and _torch_dies_of_bf16():
        raise RuntimeError("torch's own bf16 attention crashes on this processor")
    out = torch_sdpa(q.bfloat16(), k.bfloat16(), v.bfloat16(), is_causal=is_causal)
    return out.to(q.dtype)


def variants(device, causal=False):
    """{name: (function of q, k and v, the context that it runs in)}"""
    plain = contextlib.nullcontext
    default = functools.partial(torch_sdpa, is_causal=causal)

    def backend(which):
        return default, lambda: sdpa_kernel(which)

    found = {
        BASELINE: (default, plain),
        "baseline_math": (functools.partial(_by_hand, is_causal=causal), plain),
        "sdpa_flash": backend(SDPBackend.FLASH_ATTENTION),
        "sdpa_math_only": backend(SDPBackend.MATH),
    }
    if device == "cuda":
        found["sdpa_mem_eff"] = backend(SDPBackend.EFFICIENT_ATTENTION)
        found["sdpa_cudnn"] = backend(SDPBackend.CUDNN_ATTENTION)
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        found["sdpa_tf32"] = default, lambda: _switched(matmul, "allow_tf32")
        found["sdpa_benchmark"] = default, lambda: _switched(cudnn, "benchmark")
    found["sdpa_bf16"] = functools.partial(_in_bf16, is_causal=causal), plain
    # Ours by the function that takes torch's arguments; rungs by name, which has more to say.
    found["attune_auto"] = functools.partial(scaled_dot_product_attention, is_causal=causal), plain
    rungs = ["naive", "fused"] + (["tiled", "mma"] if device == "cuda" else [])
    for mode in rungs:
        found[f"attune_{mode}"] = functools.partial(attention, mode=mode, is_causal=causal), plain
    return found


def measure(shape, dtype, device, repetitions=3, rounds=9, say=lambda text: None):
    """One dict a variant, the fastest first."""
    torch.manual_seed(42)
    q, k, v = (torch.randn(*shape, device=device).to(dtype) for _ in range(3))
    exact = torch_sdpa(q.double(), k.double(), v.double())
    default = torch_sdpa(q, k, v)
    usable, failed = {}, []
    for name, (call, context) in variants(device).items():
        entry = {
            "name": name,
            "latency_us": None,
            "max_diff": None,
            "fitness": 0.0,
            "interval": None,
        }
        try:
            with context():
                out = call(q, k, v)
        except (RuntimeError, NotImplementedError) as error:
            failed.append({**entry, "why": str(error).splitlines()[0]})
            continue
        error = (out.double() - exact).abs().max().item()
        entry["max_diff"] = (out.double() - default.double()).abs().max().item()
        limit = LIMIT[torch.bfloat16 if name == "sdpa_bf16" else dtype]
        if not error <= limit:
            failed.append({**entry, "why": f"wrong by {error:.2g}, allowed is {limit:.2g}"})
            continue
        usable[name] = (functools.partial(call, q, k, v), context, entry)
        say(f"{name}: right, {error:.1e} from float64")
    calls = {name: call for name, (call, _, _) in usable.items()}
    contexts = {name: context for name, (_, context, _) in usable.items()}
    samples = {name: [] for name in calls}
    for n in range(repetitions):
        say(f"timing, {n + 1} of {repetitions}")
        turns = _timing.take_turns(calls, torch.device(device), rounds, seed=n, contexts=contexts)
        for name, some in turns.items():
            samples[name].extend(some)
    for name, (_, _, entry) in usable.items():
        mid, low, high = _timing.ratio(samples[BASELINE], samples[name])
        entry.update(fitness=mid, interval=[low, high])
        entry["latency_us"] = 1e6 * statistics.median(samples[name])
        parts = [samples[name][n * rounds : (n + 1) * rounds] for n in range(repetitions)]
        entry["repetitions_us"] = [1e6 * statistics.median(part) for part in parts]
    ranked = sorted((entry for _, _, entry in usable.values()), key=lambda e: -e["fitness"])
    return ranked + failed


def table(results):
    lines = [f"{'variant':<18} {'us':>10} {'fitness':>9}  {'interval':<15} {'max_diff':>9}"]
    for r in results:
        if r["latency_us"] is None:
            lines.append(f"{r['name']:<18} {'-':>10} {'0':>9}  {r['why']}")
            continue
        low, high = r["interval"]
        lines.append(
            f"{r['name']:<18} {r['latency_us']:>10.2f} {r['fitness']:>8.3f}x  "
            f"{f'{low:.3f}..{high:.3f}':<15} {r['max_diff']:>9.1e}"
        )
    return "\n".join(lines)


def main(arguments=None):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser = argparse.ArgumentParser(
        prog="python -m attune.sweep",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--shape", default="1x8x512x64", help="BxHxSxD")
    parser.add_argument("--dtype", type=_library.dtype_name, default="f16", choices=DTYPES)
    parser.add_argument("--device", default=device, choices=["cpu", "cuda"])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=9, help="samples of each in a repetition")
    parser.add_argument("--out", default="evidence/evo_attention_sweep.json")
    parser.add_argument("--json", action="store_true", help="print the JSON, not the table")
    options = parser.parse_args(arguments)
    try:
        shape = [int(size) for size in options.shape.split("x")]
    except ValueError:
        shape = []
    if len(shape) != 4 or min(shape) < 1:
        parser.error(f"--shape {options.shape} is not BxHxSxD, as in 1x8x512x64")

    if min(options.repetitions, options.rounds) < 1:
        parser.error("--repetitions and --rounds are at least 1")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU here")
    out = Path(options.out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out {out} cannot be written: {error}")

    if options.dtype == "bf16" and options.device == "cpu" and _torch_dies_of_bf16():
        parser.error("torch's own bf16 attention, the baseline, crashes on this processor")

    def say(text):
        if sys.stderr.isatty():
            print(text, file=sys.stderr)

    with torch.no_grad():
        results = measure(
            shape, DTYPES[options.dtype], options.device, options.repetitions, options.rounds, say
        )
    text = json.dumps(results, indent=2) + "\n"
    print(text if options.json else table(results))
    if not _tool.write_text(out, text):
        return 2
    if not options.json:
        print(f"written to {out}")
    ours = [r for r in results if r["name"].startswith("attune_") and r["interval"]]
    return 0 if any(r["interval"][0] > 1 for r in ours) else 1


if __name__ == "__main__":
    _tool.run(main)
