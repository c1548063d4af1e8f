"""Is this attention module right, and how much faster is it than another?

    python -m attune.evaluate --path optimised.py [--baseline module.py] [--json -]

A module file defines `Model(n_embd, n_head, attn_pdrop, resid_pdrop, max_seqlen)`, a torch module
from [batch, seq, n_embd] to the same shape. Without --baseline the plain causal self-attention that
comes with the package is the baseline. Both get the same weights and inputs; ten fresh inputs must
agree to the tolerance; both are timed without gradients, taking turns.

Exit code: 0 it is right, 1 it is not, 2 it could not be tried.
"""

import argparse
import importlib.util
import inspect
import json
import statistics
import sys
from contextlib import contextmanager
from pathlib import Path

import torch

from . import _timing, _tool

BASELINE = Path(__file__).parent / "examples" / "module.py"
OPTIMISED = Path(__file__).parent / "examples" / "optimised_module.py"


class Unusable(Exception):
    """The file cannot be tried at all."""


@contextmanager
def trying(what):
    """Whatever a candidate does, sys.exit included, is the candidate's failure and not ours."""
    try:
        yield
    except (KeyboardInterrupt, Unusable):
        raise
    except BaseException as error:
        raise Unusable(f"{what}: {type(error).__name__}: {error}") from error


def load_model(path, options):
    spec = importlib.util.spec_from_file_location(f"attune_candidate_{Path(path).stem}", path)
    if spec is None or not Path(path).exists():
        raise Unusable(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    with trying(f"{path} cannot be imported"):
        spec.loader.exec_module(module)
    if not hasattr(module, "Model"):
        raise Unusable(f"{path} defines no Model")
    wanted = {
        "n_embd": options.n_embd,
        "n_head": options.n_head,
        "attn_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "max_seqlen": options.max_seqlen,
    }
    with trying(f"the Model of {path} cannot be made"):
        known = inspect.signature(module.Model).parameters
        takes_all = any(p.kind is p.VAR_KEYWORD for p in known.values())
        torch.manual_seed(options.seed)
        model = module.Model(**{k: v for k, v in wanted.items() if takes_all or k in known})
        return model.to(options.device).eval()


def same_weights(baseline, model):
    """Copies the baseline's parameters; every parameter of the other must be among them."""
    weights = baseline.state_dict()
    missing = [name for name, _ in model.named_parameters() if name not in weights]
    if missing:
        raise Unusable(f"the baseline has no parameters {', '.join(missing)}")
    own = model.state_dict()
    with trying("the baseline's weights do not fit"):
        model.load_state_dict({k: v for k, v in weights.items() if k in own}, strict=False)


class Switches:
    """torch's global ones that trade accuracy for speed: a candidate's are its own."""

    def __init__(self):
        self.precision = torch.get_float32_matmul_precision()
        self.convolutions = torch.backends.cudnn.allow_tf32

    @contextmanager
    def set(self):
        before = Switches()
        self._apply()
        try:
            yield
        finally:
            before._apply()

    def _apply(self):
        torch.set_float32_matmul_precision(self.precision)
        torch.backends.cudnn.allow_tf32 = self.convolutions


def difference(expected, got):
    with trying("its result is no tensor"):
        shapes = tuple(got.shape), tuple(expected.shape)
    if shapes[0] != shapes[1]:
        raise Unusable(f"it gives {shapes[0]}, the baseline {shapes[1]}")
    return (expected.double() - got.double()).abs().max().item()


def worst_of(differences):
    """The largest; NaN, which compares with nothing, is worse than any."""
    return max(differences, key=lambda d: (d != d, d))


def shown(difference):
    return difference if difference == difference else "nan"  # JSON has no NaN


class Contest:
    """Both modules, each under its own switches."""

    def __init__(self, options):
        self.options = options
        before = Switches()
        self.baseline = load_model(options.baseline, options)
        self.candidate = load_model(options.path, options)
        self.switches = {"baseline": before, "optimised": Switches()}
        same_weights(self.baseline, self.candidate)

    def fresh(self):
        o = self.options
        return torch.randn(o.batch, o.seq, o.n_embd, device=o.device)

    def expected(self, x):
        with self.switches["baseline"].set():
            return self.baseline(x)

    def got(self, x):
        with self.switches["optimised"].set(), trying("it cannot be called"):
            return self.candidate(x)

    def compare(self):
        """The largest difference over fresh inputs."""
        found = []
        for _ in range(self.options.trials):
            x = self.fresh()
            found.append(difference(self.expected(x), self.got(x.clone())))
        return worst_of(found)

    def time(self):
        """(samples, how wrong timed results were: the last of each sample). Every call sees other
        numbers, so that nothing can be remembered; the price, one short operation, is the same for
        both."""
        inputs = [self.fresh() for _ in range(4)]
        state = {"n": 0, "last": None}
        found = []

        def turning(module, keep):
            def call():
                n = state["n"] = state["n"] + 1
                x = inputs[n % len(inputs)]
                x[n % x.shape[0], n % x.shape[1], n % x.shape[2]].add_(1)
                out = module(x)
                if keep:
                    state["last"] = x, out

            return call

        calls = {
            "baseline": turning(self.baseline, False),
            "optimised": turning(self.candidate, True),
        }

        @contextmanager
        def checked():  # after the clock has stopped; the last call's input is still as it was
            with self.switches["optimised"].set():
                yield
            x, out = state["last"]
            found.append(difference(self.expected(x), out))

        contexts = {"baseline": self.switches["baseline"].set, "optimised": checked}
        device = torch.device(self.options.device)
        with trying("it cannot be timed"):
            samples = _timing.take_turns(calls, device, self.options.rounds, contexts=contexts)
        return samples, worst_of(found)


def evaluate(options):
    contest = Contest(options)
    with torch.no_grad():
        torch.manual_seed(options.seed + 1)
        worst = contest.compare()
        right = worst < options.tolerance  # false for NaN
        result = {
            "path": str(options.path),
            "baseline": str(options.baseline),
            "device": options.device,
            "correct": right,
            "max_diff": shown(worst),
            "tolerance": options.tolerance,
            "score": 0.0,
        }
        if not right:
            return result
        samples, timed = contest.time()
        worst = worst_of([timed, contest.compare()])  # right before, while and after it is timed
        if not worst < options.tolerance:
            return {**result, "correct": False, "max_diff": shown(worst)}
    mid, low, high = _timing.ratio(samples["baseline"], samples["optimised"])
    return {
        **result,
        "baseline_ms": 1e3 * statistics.median(samples["baseline"]),
        "optimised_ms": 1e3 * statistics.median(samples["optimised"]),
        "speedup": mid,
        "interval": [low, high],
        "score": mid,
    }


def block(result):
    line = "=" * 60
    text = [line, "FINAL RESULTS", line, f"Correctness: {'PASS' if result['correct'] else 'FAIL'}"]
    text.append(f"Max difference: {result['max_diff']} (allowed {result['tolerance']})")
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
    parser.add_argument("--baseline", default=BASELINE, help="the module to hold it against")
    parser.add_argument("--device", default=device, help=f"default here: {device}")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--n-embd", type=int, default=768)
    parser.add_argument("--n-head", type=int, default=8)
    parser.add_argument("--max-seqlen", type=int, default=512)
    parser.add_argument("--trials", type=int, default=10, help="fresh inputs that must agree")
    parser.add_argument("--tolerance", type=float, default=1e-5)
    parser.add_argument("--rounds", type=int, default=15, help="of timing")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--json",
        metavar="FILE",
        nargs="?",
        const="-",
        help="also as JSON; alone or with -: to stdout, instead of the table",
    )
    options = parser.parse_args(arguments)
    for name in ("batch", "seq", "n_embd", "n_head", "max_seqlen", "trials", "rounds"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is {getattr(options, name)}; at least 1")
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error(f"--device {options.device}: torch finds no GPU here")
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
