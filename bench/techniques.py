#!/usr/bin/env python3
"""What each technique brings: judges one program with its techniques switched on one by one.

    bench/techniques.py                                          # the CPU twin, on this machine
    bench/techniques.py --device cuda                            # the CUDA program, on a GPU
    bench/techniques.py --device cuda --shape 8x32x512x64 --shape 2x32x2048x64 --json out.json

Each row of the table is the program with one more of its tunables set to 1, judged by attune judge
like any other program: a row is only there when its results are right. Efficiency is the share of
the peak that the same command measures (of matrix products on tensor cores for CUDA). "Of library"
is the speed beside the library's own kernel, timed in turns with the program; "over naive" is that
number over the first row's, so that others' work on the machine does not count. The row for
causal skipping is compared with the one above it on causal shapes, because it does nothing on
others.
"""

import argparse
import json
import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# The tunable that a row sets, and what the row is called. Those behind come later.
LADDERS = {
    "cuda": (
        ROOT / "examples" / "cuda_attention" / "catalogue" / "techniques.cu",
        [
            ("TILING", "tiles in shared memory"),
            ("COALESCING", "coalesced 16-byte loads"),
            ("ONLINE_SOFTMAX", "online softmax"),
            ("TENSOR_CORES", "tensor cores"),
            ("DOUBLE_BUFFERING", "double buffering"),
            ("LAZY_RESCALING", "lazy rescaling"),
            ("CAUSAL_SKIPPING", "causal skipping"),
        ],
    ),
    "cpu": (
        ROOT / "examples" / "cpu_attention" / "techniques.cpp",
        [
            ("TILING", "tiles of keys"),
            ("ONLINE_SOFTMAX", "online softmax"),
            ("VECTOR_LAYOUT", "keys transposed, vector exp"),
            ("REGISTER_BLOCKING", "register blocking"),
            ("CAUSAL_SKIPPING", "causal skipping"),
        ],
    ),
}
CAUSAL = "CAUSAL_SKIPPING"
SHAPES = {"cuda": ["8x32x512x64", "4x32x1024x64", "2x32x2048x64", "1x32x4096x64"]}
SHAPES["cpu"] = ["1x4x512x64"]


def with_values(text, values):
    """The program with tunables set."""
    for name, value in values.items():
        line = re.compile(rf"(\b{name}\s*=\s*)\w+(.*EVOLVE-PARAM {name} )")
        text, count = line.subn(rf"\g<1>{value}\g<2>", text)
        if count != 1:
            raise SystemExit(f"techniques.py: the program has no tunable {name}")
    return text


def judge(tool, text, suffix, options, causal):
    """The verdict as JSON, of the program as a file of its own."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"techniques{suffix}"
        file.write_text(text)
        command = [str(tool), "judge", str(file), "--json", "--device", options.device]
        for shape in options.shape:
            command += ["--shape", shape]
        if causal:
            command.append("--causal")
        done = subprocess.run(command, capture_output=True, text=True)
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError:
        message = (done.stderr.strip() or done.stdout.strip()).splitlines()
        said = message[-1] if message else "died"
        raise SystemExit(f"techniques.py: attune judge: {said}") from None


def fastest(tool, text, suffix, options, causal):
    """Of some verdicts, on a machine where others work too: the first refusal, or the fastest."""
    best = None
    for _ in range(max(options.repeats, 1)):
        verdict = judge(tool, text, suffix, options, causal)
        if verdict["verdict"] != "ok":
            return verdict
        if best is None or measured(verdict)["gflops"] > measured(best)["gflops"]:
            best = verdict
    return best


def measured(verdict):
    """Mean GFLOP/s (geometric), share of the peak, seconds by shape; None where it was refused."""
    if verdict["verdict"] != "ok":
        return None
    shapes = verdict["shapes"]
    mean = math.exp(sum(math.log(s["gflops"]) for s in shapes) / len(shapes))
    over_library = math.exp(sum(math.log(s["speedup"]["mid"]) for s in shapes) / len(shapes))
    peak = verdict["machine"]["peak_gflops"]
    return {
        "gflops": mean,
        "efficiency_percent": 100 * mean / peak if peak else None,
        "over_library": over_library,
        "seconds": {s["shape"]: s["seconds"] for s in shapes},
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--shape", action="append", help="batch x heads x seq_len x head_dim")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--repeats", type=int, default=1, help="of each row: the fastest counts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there")
    parser.add_argument("--attune", type=Path, default=ROOT / "build" / "attune")
    options = parser.parse_args()
    options.shape = options.shape or SHAPES[options.device]
    if not options.attune.exists():
        raise SystemExit(f"techniques.py: {options.attune} is not there: build it, or use --attune")
    for setting in options.set:
        if not re.fullmatch(r"\w+=\w+", setting):
            raise SystemExit(f"techniques.py: --set takes NAME=VALUE, not '{setting}'")
    file, ladder = LADDERS[options.device]
    text = with_values(file.read_text(), dict(s.split("=") for s in options.set))

    unit, size = ("TFLOP/s", 1000) if options.device == "cuda" else ("GFLOP/s", 1)
    values = {name: 0 for name, _ in ladder}
    rows, first, machine = [], {}, None
    steps = [(None, "naive", False)] + [(n, f"+ {t}", False) for n, t in ladder if n != CAUSAL]
    steps += [(None, "the same, causal", True), (CAUSAL, "+ causal skipping", True)]
    print(f"{file.relative_to(ROOT)} at {', '.join(options.shape)}")
    print(
        f"{'technique':<34} {unit:>8} {'of peak':>8} {'of library':>11} {'over naive':>11}",
        flush=True,
    )
    for name, title, causal in steps:
        if name:
            values[name] = 1
        program = with_values(text, values)
        verdict = fastest(options.attune, program, file.suffix, options, causal)
        machine = verdict.get("machine") or machine
        row = {"technique": title, "tunables": dict(values), "causal": causal}
        row |= {"verdict": verdict["verdict"], "why": verdict["why"]}
        result = measured(verdict)
        if result is None:
            print(f"{title:<34} {verdict['verdict']}: {verdict['why']}", flush=True)
        else:
            # Causal shapes are compared with the program before the step.
            first.setdefault(causal, result["over_library"])
            row |= result | {"over_first": result["over_library"] / first[causal]}
            share = row["efficiency_percent"]
            shown = f"{share:7.1f}%" if share is not None else "       ?"
            print(
                f"{title:<34} {result['gflops'] / size:8.3g} {shown} "
                f"{row['over_library']:10.3f}x {row['over_first']:10.2f}x",
                flush=True,
            )
        rows.append(row)
    if machine:
        print(f"{machine['name']}, measured peak {machine['peak_gflops'] / size:.4g} {unit}")
    if options.json:
        report = {"program": str(file.relative_to(ROOT)), "device": options.device}
        report |= {"shapes": options.shape, "machine": machine, "rows": rows}
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if all(row["verdict"] == "ok" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
