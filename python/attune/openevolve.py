"""Attune's judge as an evaluator of other evolutionary searches:

    from attune.openevolve import evaluate

is a whole evaluator.py for OpenEvolve, and for what takes the same files. A program of attention in
C++ or CUDA is compiled, checked and timed by `attune judge`; combined_score is its share of the
measured peak, from 0 to 1, and 0 for a refused program. The artifacts say why it was refused, with
the compiler's errors, so that a model can repair it. With other shapes than the tool's own:

    from attune.openevolve import evaluator

    evaluate = evaluator("--shape", "4x8x256x128", "--causal", timeout=120)

A torch module is judged beside the plain one, and the ModelNew of KernelBench beside its problem;
combined_score is its speed over that, for it has no measured peak:

    evaluate = evaluator("--reference", "problem.py")
"""

import json
import os
import signal
import subprocess

from . import _tool

NUMBERS = ("combined_score", "efficiency_percent", "avg_tflops", "valid_benchmarks")
MODULES = ("Model", "ModelNew")  # contracts of torch modules
TIMEOUT = 240.0  # below the 300 s after which OpenEvolve gives an evaluation up
MOST_TEXT = 8000


def _result(metrics, artifacts):
    """OpenEvolve's own class where it is there: a dict has no place for artifacts."""
    artifacts = {name: text for name, text in artifacts.items() if text}
    try:
        from openevolve.evaluation_result import EvaluationResult
    except ImportError:
        return {**metrics, "artifacts": artifacts} if artifacts else metrics
    return EvaluationResult(metrics=metrics, artifacts=artifacts)


def _refused(verdict, reason, **artifacts):
    return _result(
        {"combined_score": 0.0, "correct": 0.0},
        {"verdict": verdict, "reason": reason[-MOST_TEXT:], **artifacts},
    )


def _run(command, seconds):
    """(exit code, stdout, stderr); no code when the time was up."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=seconds)
        return process.returncode, out, err
    except subprocess.TimeoutExpired:
        return None, "", ""
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _errors(program, verdict):
    lines = [f"{os.path.basename(program)}:{e['line']}: {e['message']}" for e in verdict["errors"]]
    return "\n".join(lines)[-MOST_TEXT:]


def evaluator(*options, timeout=TIMEOUT):
    """An evaluate() that hands these options on to `attune judge`, and gives it so many seconds."""

    def evaluate(program_path):
        """Judges one program. Returns metrics with a combined_score, and artifacts."""
        return _judge(program_path, options, timeout)

    return evaluate


evaluate = evaluator()


def _judge(program_path, options, timeout):
    command = [str(_tool.path()), "judge", str(program_path), "--json", "-", *map(str, options)]
    code, out, err = _run(command, timeout)
    if code is None:
        return _refused("run_timeout", f"the judge was not done after {timeout:g} s")
    try:
        verdict = json.loads(out)
    except ValueError:  # wrong usage, or the machine's trouble: no verdict on the program
        return _refused("none", err.strip() or f"attune judge ended with exit code {code}")
    if verdict["verdict"] != "ok":
        return _refused(
            verdict["verdict"],
            verdict["why"],
            stage=verdict["stage"],
            compiler_errors=_errors(program_path, verdict),
        )
    # A module has no numbers of GFLOP/s.
    metrics = {name: float(verdict[name]) for name in NUMBERS if verdict[name] is not None}
    metrics["correct"] = 1.0
    metrics["max_error"] = float(verdict["error"])
    module = verdict["contract"] in MODULES
    speeds = [shape["speedup"]["mid"] for shape in verdict["shapes"]]
    if speeds:
        speed = "speed_over_reference" if module else "speed_over_library"
        metrics[speed] = sum(speeds) / len(speeds)
    against = os.path.basename(verdict["reference"]) if module else "the library"
    table = [_line(shape, against) for shape in verdict["shapes"]]
    return _result(metrics, {"verdict": "ok", "shapes": "\n".join(table)})


def _line(shape, against):
    rate = "" if shape["gflops"] is None else f"{shape['gflops']:.1f} GFLOP/s, "
    return (
        f"{shape['shape']}: {1e3 * shape['seconds']:.4g} ms, {rate}"
        f"{shape['speedup']['mid']:.3g} times as fast as {against}"
    )
