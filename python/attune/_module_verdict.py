"""`attune judge module.py`: the verdict of attune.evaluate in the words and the JSON of the tool.

    python -m attune._module_verdict --path FILE [--reference PROBLEM] [options of attune.evaluate]

The JSON goes to stdout. Exit code: 0 ok, 1 refused, 2 wrong usage or no torch, 3 it could not be
tried (stderr says why).
"""

import json
import re
import statistics
import sys

SCHEMA = 1  # of attune judge

# The judge's reasons, and the verdict and the stage that they are. What is none of these is an
# attempt to deceive: work outside of the call, forged replies, others' processes.
_REASONS = [
    (r"wrong result|its result has a wrong shape", "wrong_result"),
    (r"it raised an exception", "launch_failed"),
    (r"killed after", "run_timeout"),
    (r"its process (died|ended)", "crashed"),
    (r"", "cheated"),
]


def errors(said):
    """The module's own line of a failure, as the compiler's errors have one."""
    found = re.search(r"at line (\d+) \(`.*`\)(?:, called at line [\d, ]+)?", said)
    return [{"line": int(found[1]), "column": 0, "message": said}] if found else []


def verdict(result, samples, options):
    """The fields of `attune judge --json`."""
    pair = options.reference is not None
    reason = result.get("reason", "")
    said = result.get("said", "")
    name = next((v for text, v in _REASONS if re.match(text, reason)), "") if reason else "ok"
    shape = "its own inputs" if pair else "{batch}x{seq}x{n_embd}".format_map(vars(options))
    against = str(options.baseline)
    report = {
        "schema": SCHEMA,
        "file": str(options.path),
        "contract": "ModelNew" if pair else "Model",
        "verdict": name,
        "stage": "measure" if name == "ok" else result.get("stage", "check"),
        "why": f"{reason}: {said}" if reason and said else reason,
        "errors": errors(said),
        "error": result.get("max_diff", 0),
        "limit": result["tolerance"] or 0,
        "shapes": [],
        "machine": machine(options.device),
        "reference": against,
    }
    if "not_held" in result:
        report["not_held"] = result["not_held"]
    if name == "ok":
        low, high = result["interval"]
        report["shapes"] = [
            {
                "shape": shape,
                "seconds": statistics.median(samples[1]),
                "library": against,
                "library_seconds": statistics.median(samples[0]),
                "gflops": None,
                "efficiency_percent": None,
                "speedup": {"low": low, "mid": result["speedup"], "high": high},
                "samples": len(samples[1]),
            }
        ]
    benchmark = {"shape": shape, "tflops": None, "correct": name == "ok"}
    return {
        **report,
        "benchmarks": [benchmark],
        "avg_tflops": None,
        "all_correct": name == "ok",
        "valid_benchmarks": int(name == "ok"),
        "efficiency_percent": None,
        "combined_score": result["score"],
    }


def not_opened(error, options):
    """Of a module that could not be imported or made: for a program, it does not compile."""
    plain = {"tolerance": options.tolerance, "score": 0.0, "reason": str(error)}
    report = verdict(plain, None, options)
    return {**report, "verdict": "compile_failed", "stage": "compile", "errors": errors(str(error))}


def machine(device):
    import torch

    from . import _functions

    on_gpu = device.startswith("cuda")
    name = torch.cuda.get_device_name(device) if on_gpu else _processor()
    return {
        "name": name,
        "threads": torch.get_num_threads(),
        "peak_gflops": None,
        "version": _functions.version(),
        "torch": torch.__version__,
    }


def _processor():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return re.search(r"model name\s*: (.*)", file.read())[1]
    except (OSError, TypeError):
        return "cpu"


def main(arguments=None):
    try:
        import torch  # noqa: F401
    except ImportError as error:
        print(f"torch cannot be imported: {error}", file=sys.stderr)
        return 2
    from . import _judge, evaluate

    options = evaluate.parse(arguments)
    try:
        report = verdict(*evaluate.judged(options), options)
    except _judge.Unusable as error:
        if error.whose != "the module":
            print(error, file=sys.stderr)
            return 3
        report = not_opened(error, options)
    print(json.dumps(report))
    return 0 if report["verdict"] == "ok" else 1


if __name__ == "__main__":
    from . import _tool

    _tool.run(main)
