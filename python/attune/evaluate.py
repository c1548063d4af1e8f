"""Is this attention module right, and how much faster is it than another?

    python -m attune.evaluate --path optimised.py [--baseline module.py] [--json]
    python -m attune.evaluate --reference problem.py --path new.py [--json]

A module file defines `Model(n_embd, n_head, attn_pdrop, resid_pdrop, max_seqlen)`, a torch module
from [batch, seq, n_embd] to the same shape. Without --baseline the plain causal self-attention that
comes with the package is the baseline.

Each runs in a process of its own, once: the interval of the speed-up knows nothing of what another
pair of processes would give, which can differ by some percent. Both get the same weights, and fresh
inputs for every call; every result must agree to the tolerance, also at other batches, sequence
lengths and scales than those asked for, and is compared with float64. Both are timed without
gradients, taking turns.

With --reference the two files are a pair of KernelBench's: the problem defines Model, get_inputs
and get_init_inputs, for any kind of module, and the other file ModelNew. Each call has new inputs
of the problem's own get_inputs. Both models are made by one seed. The tolerance is KernelBench's,
absolute and relative: 1e-4, and 1e-2 for 16-bit results. Other shapes are not tried. A problem
whose result is the same for all inputs, to the tolerance, is not judged.

Exit code: 0 it is right, 1 it is refused (the reason is said), 2 it could not be tried.
"""

import argparse
import json
import math
import secrets
import statistics
import sys
from pathlib import Path

import torch

from . import _sandbox, _timing, _tool
from ._judge import Judge, Refused, Unusable
from ._judge_pair import PairJudge

BASELINE = Path(__file__).parent / "examples" / "module.py"
OPTIMISED = Path(__file__).parent / "examples" / "optimised_module.py"
SIZES = {"batch": 32, "seq": 256, "n_embd": 768, "n_head": 8, "max_seqlen": 512}


def shown(difference):
    return difference if difference == difference else "nan"  # JSON has no NaN


def evaluate(options):
    """The verdict, as a dict."""
    return judged(options)[0]


def judged(options):
    """(the verdict, the samples): seconds of the baseline, of the module and of each file of
    options.beside, one a round; no samples where it is refused."""
    pair = getattr(options, "reference", None) is not None
    result = {
        "path": str(options.path),
        "reference" if pair else "baseline": str(options.baseline),
        "device": options.device,
        "seed": options.seed,
        "correct": False,
        "tolerance": options.tolerance,
        "score": 0.0,
    }
    if gaps := _sandbox.gaps():
        result["not_held"] = gaps
    with PairJudge(options) if pair else Judge(options) as judge:
        stage = "check"
        try:
            judge.load()
            judge.fresh_weights()
            judge.check()
            judge.fresh_weights()
            stage = "measure"
            samples = judge.time()
        except Refused as refused:
            result.update(reason=str(refused), said=refused.said, stage=stage)
        if judge.compared:
            result.update({name: shown(value) for name, value in judge.seen.items()})
        if pair:
            result.update(judge.words())
    if "reason" in result:
        return result, None
    mid, low, high = _timing.ratio(*samples[:2])
    verdict = {
        **result,
        "correct": True,
        "baseline_ms": 1e3 * statistics.median(samples[0]),
        "optimised_ms": 1e3 * statistics.median(samples[1]),
        "speedup": mid,
        "interval": [low, high],
        "interval_of": "one pair of processes",
        "score": mid,
    }
    return verdict, samples


def block(result):
    line = "=" * 60
    text = [line, "FINAL RESULTS", line, f"Correctness: {'PASS' if result['correct'] else 'FAIL'}"]
    if not result["correct"]:
        text.append(f"Reason: {result['reason']}")
    if "max_diff" in result:
        text.append(f"Max difference: {result['max_diff']} (allowed {result['tolerance']})")
        baseline = result["baseline_float64_diff"]
        told = f"{result['float64_diff']} (baseline {baseline})"
        text.append(f"From float64: {result.get('no_float64', told)}")
    if "speedup" in result:
        text.append(f"Baseline time: {result['baseline_ms']:.4f} ms")
        text.append(f"Optimized time: {result['optimised_ms']:.4f} ms")
        low, high = result["interval"]
        text.append(f"Speedup: {result['speedup']:.2f}x ({low:.2f}..{high:.2f})")
    return "\n".join([*text, f"Score: {result['score']:.4f}"])


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m attune.evaluate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--path", default=OPTIMISED, help="the module to judge (default: ours)")
    parser.add_argument("--baseline", default=BASELINE, help="the module to compare it with")
    parser.add_argument("--reference", metavar="PROBLEM", help="KernelBench's problem file")
    parser.add_argument("--device", default=device, help=f"default here: {device}")
    for name, value in SIZES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    parser.add_argument(
        "--trials",
        type=int,
        help="random shapes beside the fixed ones (default: 4); with --reference inputs (10)",
    )
    parser.add_argument("--tolerance", type=float, help="default: 1e-5; KernelBench's own")
    parser.add_argument("--rounds", type=int, default=15, help="of timing")
    parser.add_argument(
        "--call-limit",
        type=float,
        metavar="SECONDS",
        help="of a call that is not timed (default: 60, on a GPU 300: it may compile)",
    )
    parser.add_argument("--seed", type=int, help="of inputs and order (default: a secret one)")
    parser.add_argument(
        "--json",
        metavar="FILE",
        nargs="?",
        const="-",
        help="also as JSON; alone or with -: to stdout, instead of the table",
    )
    options = parser.parse_args(arguments)
    if options.reference is not None:
        if options.path == OPTIMISED:
            parser.error("--path is needed beside --reference")
        for name, value in {**SIZES, "baseline": BASELINE}.items():
            if getattr(options, name) != value:
                parser.error(f"--{name.replace('_', '-')} does not go with --reference")
        options.baseline = options.reference
    elif options.tolerance is None:
        options.tolerance = 1e-5
    if options.trials is None:
        options.trials = 4 if options.reference is None else 10
    for name in (*SIZES, "trials", "rounds"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is {getattr(options, name)}; at least 1")
    if options.call_limit is not None and not 0 < options.call_limit < math.inf:
        parser.error(f"--call-limit is {options.call_limit}; more than 0")
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error(f"--device {options.device}: torch finds no GPU here")
    if options.seed is None:
        options.seed = secrets.randbits(63)
    return options


def main(arguments=None):
    options = parse(arguments)
    try:
        result = evaluate(options)
    except Unusable as error:
        print(f"attune.evaluate: {error}", file=sys.stderr)
        if options.json == "-":
            print(json.dumps({"correct": False, "score": 0.0, "error": str(error)}, indent=2))
        return 2
    for gap in result.get("not_held", []):
        print(f"attune.evaluate: this kernel has {gap}", file=sys.stderr)
    if result.get("said"):
        print(f"attune.evaluate: {result['reason']}: {result['said']}", file=sys.stderr)
    if options.json != "-":
        print(block(result))
    if options.json:
        text = json.dumps(result, indent=2)
        if options.json == "-":
            print(text)
        elif not _tool.write_text(options.json, text + "\n"):
            return 2
    return 0 if result["correct"] else 1


if __name__ == "__main__":
    _tool.run(main)
