"""Every way to compute one attention call here, by speed: torch's backends and switches, and ours.

    python -m attune.sweep [--shape 1x8x512x64] [--device cuda] [--out FILE]
    python -m attune.sweep --generations 5 --elites 3     # search for more, from three matmuls

Each variant is compared with float64 (and against torch's default, which is max_diff), then all of
them are timed together, taking turns, in three repetitions. fitness is torch's default time over
the variant's, measured in this run; a variant that is wrong has fitness 0.

With --generations, a search begins with attention as three steps (matmul, softmax, matmul). Each
generation tries the mutations of three levels (algorithm, implementation, hardware) on every elite,
times what is right beside torch's default and the elites, and keeps the best as elites. At the end
the elites are timed once more, in repetitions of their own. --list-mutations names them.

Exit code: 0 something of ours (with --generations: of the search) is faster than torch's default,
1 nothing is, 2 bad usage.
"""

import argparse
import contextlib
import functools
import json
import random
import statistics
import subprocess
import sys
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as torch_sdpa

from . import _attention_genes, _library, _timing, _tool
from ._attention_genes import Genome
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
    # The rungs of a GPU; one that it cannot run is said to have failed.
    rungs = ["naive", "fused"] if device == "cpu" else list(_library.MODES)[2:]
    for mode in rungs:
        found[f"attune_{mode}"] = functools.partial(attention, mode=mode, is_causal=causal), plain
    return found


def _limit(name, dtype):
    return LIMIT[torch.bfloat16 if name.endswith("bf16") or "bfloat16" in name else dtype]


def measure(shape, dtype, device, repetitions=3, rounds=9, say=lambda text: None, found=None):
    """One dict a variant, the fastest first. Found: what to measure, by name; one is BASELINE."""
    torch.manual_seed(42)
    q, k, v = (torch.randn(*shape, device=device).to(dtype) for _ in range(3))
    exact = torch_sdpa(q.double(), k.double(), v.double())
    default = torch_sdpa(q, k, v)
    usable, failed = {}, []
    for name, (call, context) in (found or variants(device)).items():
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
        except (ImportError, RuntimeError, NotImplementedError) as error:
            failed.append({**entry, "why": str(error).splitlines()[0]})
            continue
        error = (out.double() - exact).abs().max().item()
        entry["max_diff"] = (out.double() - default.double()).abs().max().item()
        limit = _limit(name, dtype)
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
        medians = [statistics.median(part) for part in parts]
        entry["repetitions_us"] = [1e6 * median for median in medians]
        entry["spread"] = (max(medians) - min(medians)) / statistics.median(medians)
        base = [samples[BASELINE][n * rounds : (n + 1) * rounds] for n in range(repetitions)]
        pairs = zip(base, parts, strict=True)
        entry["repetitions_fitness"] = [_timing.ratio(b, own)[0] for b, own in pairs]
    ranked = sorted((entry for _, _, entry in usable.values()), key=lambda e: -e["fitness"])
    return ranked + failed


def _environment():
    from .evolve_module import environment  # it needs the judge, which a sweep does not

    return environment()


def evolve(
    shape,
    dtype,
    device,
    generations=5,
    elites=3,
    repetitions=3,
    rounds=9,
    seed=0,
    children=12,
    say=lambda text: None,
    gen_done=lambda generation: None,
):
    """Generations of ways to compute attention in torch: a dict, as it is written to the file."""
    dice = random.Random(seed)
    default = variants(device)[BASELINE]
    genomes = {Genome().name: Genome()}
    population, history = [], []
    fresh = {Genome().name: ("", "", "")}  # name: (parent, level, mutation)
    for n in range(generations):
        found = {BASELINE: default}
        found |= {name: _attention_genes.variant(genomes[name]) for name in [*population, *fresh]}
        if n > 0 and not fresh:
            break  # everything that mutations can reach was tried
        say(f"generation {n}: {len(fresh)} new, {len(population)} elites")
        results = measure(shape, dtype, device, 1, rounds, say, found)
        for r in results:
            if r["name"] in fresh:
                r["parent"], r["level"], r["mutation"] = fresh[r["name"]]
        right = [r for r in results if r["fitness"] > 0 and r["name"] != BASELINE]
        population = [r["name"] for r in right[:elites]]
        history.append({"generation": n, "elites": population, "results": results})
        gen_done(history[-1])
        if not population:
            break
        fresh = {}
        for parent in population:
            for level, mutation, child in _attention_genes.children(genomes[parent], device):
                if child.name not in genomes and child.name not in fresh:
                    fresh[child.name] = parent, level, mutation, child
        chosen = dice.sample(sorted(fresh), min(children, len(fresh)))
        genomes |= {name: fresh[name][3] for name in chosen}
        fresh = {name: fresh[name][:3] for name in chosen}
    found = {BASELINE: default}
    found |= {name: _attention_genes.variant(genomes[name]) for name in population}
    say("the elites once more")
    final = measure(shape, dtype, device, repetitions, rounds, say, found)
    return {
        "schema": 1,
        "shape": list(shape),
        "dtype": str(dtype).removeprefix("torch."),
        "device": device,
        "environment": _environment(),
        "seed": seed,
        "generations": history,
        "final": final,
        "verdict": verdict(final),
    }


def verdict(results):
    """One sentence on the fastest that is not torch's default."""
    rivals = [r for r in results if r["name"] != BASELINE and r["interval"]]
    if not rivals:
        return "Nothing but torch's default was right."
    best = max(rivals, key=lambda r: r["fitness"])
    low, high = best["interval"]
    times = best["repetitions_fitness"]
    faster = sum(t > 1 for t in times)
    said = f"{best['name']}: {best['fitness']:.3f}x as fast as torch's SDPA ({low:.3f}..{high:.3f})"
    said += f", faster in {faster} of {len(times)} repetitions, which differ by"
    said += f" {100 * best['spread']:.0f} %"
    if low > 1 and faster == len(times):
        return f"Faster than torch's SDPA: {said}."
    return f"Nothing faster than torch's SDPA was confirmed. The best is {said}."


def generation_line(generation):
    best = next((r for r in generation["results"] if r["name"] in generation["elites"]), None)
    tried = sum("level" in r for r in generation["results"])
    wrong = sum("level" in r and not r["fitness"] for r in generation["results"])
    line = f"Gen {generation['generation']}: {tried} tried, {wrong} failed; "
    if best is None:
        return line + "nothing is right"
    by = f" by {best['mutation']}" if best.get("mutation") else ""
    return line + f"best {best['name']}, {best['latency_us']:.2f} us, {best['fitness']:.3f}x{by}"


def list_mutations():
    lines = [f"{m[0]:<15} {m[1]:<18} {m[3]}" for m in _attention_genes.MUTATIONS]
    return "\n".join(lines)


def table(results):
    wide = max(18, *(len(r["name"]) for r in results))
    lines = [f"{'variant':<{wide}} {'us':>10} {'fitness':>9}  {'interval':<15} {'max_diff':>9}"]
    for r in results:
        if r["latency_us"] is None:
            lines.append(f"{r['name']:<{wide}} {'-':>10} {'0':>9}  {r['why']}")
            continue
        low, high = r["interval"]
        lines.append(
            f"{r['name']:<{wide}} {r['latency_us']:>10.2f} {r['fitness']:>8.3f}x  "
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
    parser.add_argument("--generations", type=int, default=0, help="0: the sweep alone")
    parser.add_argument("--elites", type=int, default=3, help="kept from each generation")
    parser.add_argument(
        "--children", type=int, default=12, help="tried in each generation, at most"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the search")
    parser.add_argument("--list-mutations", action="store_true")
    parser.add_argument(
        "--out", help="default: evidence/evo_attention_sweep.json, or ..._generations.json"
    )
    parser.add_argument("--json", action="store_true", help="print the JSON, not the table")
    options = parser.parse_args(arguments)
    try:
        shape = [int(size) for size in options.shape.split("x")]
    except ValueError:
        shape = []
    if len(shape) != 4 or min(shape) < 1:
        parser.error(f"--shape {options.shape} is not BxHxSxD, as in 1x8x512x64")

    if options.list_mutations:
        print(list_mutations())
        return 0
    if min(options.repetitions, options.rounds) < 1:
        parser.error("--repetitions and --rounds are at least 1")
    if min(options.elites, options.children) < 1 or options.generations < 0:
        parser.error("--elites and --children are at least 1, --generations at least 0")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU here")
    kind = "generations" if options.generations else "sweep"
    out = Path(options.out or f"evidence/evo_attention_{kind}.json")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out {out} cannot be written: {error}")

    if options.dtype == "bf16" and options.device == "cpu" and _torch_dies_of_bf16():
        parser.error("torch's own bf16 attention, the baseline, crashes on this processor")

    def say(text):
        if sys.stderr.isatty():
            print(text, file=sys.stderr)

    if options.generations:
        return _generations(options, shape, out, say)
    with torch.no_grad():
        results = measure(
            shape, DTYPES[options.dtype], options.device, options.repetitions, options.rounds, say
        )
    text = json.dumps(results, indent=2) + "\n"
    print(text if options.json else table(results))
    if not _tool.write_text(out, text):
        return 2
    if not options.json:
        print(f"{verdict(results)}\nwritten to {out}")
    ours = [r for r in results if r["name"].startswith("attune_") and r["interval"]]
    return 0 if any(r["interval"][0] > 1 for r in ours) else 1


def _generations(options, shape, out, say):
    def gen_done(generation):
        print(
            generation_line(generation), file=sys.stderr if options.json else sys.stdout, flush=True
        )

    with torch.no_grad():
        found = evolve(
            shape,
            DTYPES[options.dtype],
            options.device,
            options.generations,
            options.elites,
            options.repetitions,
            options.rounds,
            options.seed,
            options.children,
            say,
            gen_done,
        )
    text = json.dumps(found, indent=2) + "\n"
    print(text if options.json else table(found["final"]))
    if not _tool.write_text(out, text):
        return 2
    if not options.json:
        print(f"{found['verdict']}\nwritten to {out}")
    return 0 if found["verdict"].startswith("Faster") else 1


if __name__ == "__main__":
    _tool.run(main)
