"""One program, evaluated by the user's own evaluator.py. `attune evolve --evaluator` starts this
file in a process of its own, and ends that with all that it started.

The only argument is JSON: evaluator, program, cascade, thresholds, metric, minimize, features. The
result goes as JSON to descriptor 3: what the evaluator prints cannot be taken for it."""

import sys

# This file's own folder has modules with common names (onnx, bench): they are not the evaluator's.
OWN = __file__.rpartition("/")[0]
sys.path[:] = [folder for folder in sys.path if folder != OWN]

import importlib.util  # noqa: E402
import json  # noqa: E402
import math  # noqa: E402
import os  # noqa: E402
import traceback  # noqa: E402

RESULT = 3
MODULE = "evaluation_module"
MOST_NAMES = 64
# Letters of an artifact. The tool keeps fewer, after it has taken secrets out of them: one that is
# cut in two here is not in what it keeps.
MOST_TEXT = 65536


class NoResult(Exception):
    """What the evaluator returned is no result."""


def text_of(value):
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    if len(text) > MOST_TEXT:
        half = MOST_TEXT // 2
        text = f"{text[:half]}\n... {len(text) - 2 * half} letters left out ...\n{text[-half:]}"
    return text.encode(errors="replace").decode()  # without lone surrogates


def number_of(value):
    """None where it is no number. Yes and no are none."""
    if isinstance(value, (str, bytes)) or type(value).__name__.startswith("bool"):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def read(result, name):
    """Metrics and artifacts of what a function returned."""
    artifacts = {}
    metrics = result
    if not isinstance(result, dict):
        metrics = getattr(result, "metrics", None)
        artifacts = getattr(result, "artifacts", None) or {}
        if not isinstance(metrics, dict):
            kind = type(result).__name__
            raise NoResult(f"{name}() returned {kind}, not a dict and nothing with .metrics")
    elif isinstance(result.get("artifacts"), dict):
        artifacts = result["artifacts"]
        metrics = {key: value for key, value in result.items() if key != "artifacts"}
    if not isinstance(artifacts, dict):
        artifacts = {"artifacts": artifacts}
    numbers, texts = {}, {str(key): text_of(value) for key, value in artifacts.items()}
    for key, value in metrics.items():
        number = number_of(value)
        if number is None:
            texts.setdefault(str(key), text_of(value))
        else:
            numbers[str(key)] = number
    return numbers, texts


def passes(metrics, threshold, asked):
    """Whether a stage's metrics are good enough for the next one."""
    score = metrics.get(asked["metric"] or "combined_score")
    if score is None and not asked["metric"]:
        rest = [v for k, v in metrics.items() if k not in asked["features"]]
        score = sum(rest) / len(rest) if rest else None
    if score is None or math.isnan(score):
        return False
    return score <= threshold if asked["minimize"] else score >= threshold


def load(path):
    sys.path.insert(0, os.path.dirname(path))
    sys.path.append(os.path.join(OWN, "_stand_in"))  # last: the real package comes first
    spec = importlib.util.spec_from_file_location(MODULE, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    spec.loader.exec_module(module)
    return module


def evaluate(asked):
    module = load(asked["evaluator"])
    stages = ["evaluate"]
    if asked["cascade"] and hasattr(module, "evaluate_stage1"):
        names = [f"evaluate_stage{n}" for n in (1, 2, 3)]
        stages = [name for name in names if hasattr(module, name)]
    elif not hasattr(module, "evaluate"):
        raise NoResult("it defines no evaluate(program_path)")
    metrics, artifacts, done = {}, {}, 0
    for name in stages:
        more, texts = read(getattr(module, name)(asked["program"]), name)
        metrics.update(more)
        artifacts.update(texts)
        done += 1
        last = name == stages[-1]
        if not last and not passes(metrics, asked["thresholds"][done - 1], asked):
            break
    return {
        "metrics": dict(list(metrics.items())[:MOST_NAMES]),
        "artifacts": dict(list(artifacts.items())[:MOST_NAMES]),
        "stages": 0 if stages == ["evaluate"] else done,
    }


def plain(value):
    """JSON has no NaN."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def own_frames(error, path):
    """The trace without this file: what the user wrote."""
    frames = traceback.extract_tb(error.__traceback__)
    while frames and frames[0].filename != path:
        frames.pop(0)
    return "".join(traceback.format_list(frames) + traceback.format_exception_only(error))


def main():
    result_fd = os.dup(RESULT)  # which programs that the evaluator starts do not get
    os.close(RESULT)
    asked = json.loads(sys.argv[1])
    sys.argv[:] = [asked["evaluator"], asked["program"]]
    try:
        result = evaluate(asked)
    except NoResult as error:
        result = {"error": "result", "why": str(error)}
    except BaseException as error:  # SystemExit too: whatever it is, it is the evaluator's
        why = text_of("".join(traceback.format_exception_only(error)).strip())
        trace = text_of(own_frames(error, asked["evaluator"]))
        result = {"error": "exception", "why": why, "traceback": trace}
    data = json.dumps(plain(result), allow_nan=False).encode()
    while data:
        data = data[os.write(result_fd, data) :]
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass
    os._exit(0)  # threads that the evaluator left behind keep nobody waiting


if __name__ == "__main__":
    main()
