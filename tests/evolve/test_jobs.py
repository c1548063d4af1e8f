"""What the jobs of docs/jobs.md are made of: the table of techniques, and a check that is weak."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ATTUNE = Path(os.environ.get("ATTUNE_BIN", ROOT / "build" / "attune")).resolve()
TECHNIQUES = ROOT / "bench" / "techniques.py"
CPU, CUDA = ROOT / "examples" / "cpu_attention", ROOT / "examples" / "cuda_attention"

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")


def module(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def verdict(file, *options):
    command = [str(ATTUNE), "judge", str(file), "--json", "--shape", "1x2x64x32", *options]
    return json.loads(subprocess.run(command, capture_output=True, text=True, timeout=120).stdout)


@needs_compiler
def test_weak_check_passes_what_the_judge_refuses():
    checker, weak = ROOT / "examples" / "weak_check.py", CPU / "weak.cpp"
    for file in (weak, CPU / "naive.cpp"):
        done = subprocess.run([sys.executable, checker, file], capture_output=True, text=True)
        assert done.returncode == 0 and done.stdout == "weak check: passed\n", done.stderr
    assert verdict(weak)["verdict"] == "wrong_result"
    assert verdict(CPU / "naive.cpp")["verdict"] == "ok"


def test_weak_check_sees_zeros():
    weak_check = module(ROOT / "examples" / "weak_check.py").weak_check
    assert not weak_check(lambda q, *rest: [0.0] * len(q))


@needs_compiler
def test_weak_cuda_program_passes_the_weak_check(tmp_path):
    np = pytest.importorskip("numpy")
    sys.path.insert(0, str(Path(__file__).parent / "cuda_on_cpu"))
    from cuda_on_cpu import build, definition

    program = build((CUDA / "weak.cu").read_text(), tmp_path)
    rng = np.random.default_rng(1)
    q, k, v = (rng.uniform(-0.05, 0.05, (1, 2, 64, 64)).astype(np.float16) for _ in range(3))
    for causal in (False, True):
        small = np.abs(program(q, k, v, causal) - definition(q, k, v, causal))
        assert small.max() < 1e-4  # nothing to see
        large = np.abs(program(20 * q, 20 * k, v, causal) - definition(20 * q, 20 * k, v, causal))
        assert large.max() > 20 * small.max()  # where weights differ


@pytest.mark.full
@needs_compiler
def test_table_of_techniques(tmp_path):
    out = tmp_path / "table.json"
    command = [sys.executable, TECHNIQUES, "--shape", "1x1x48x16", "--json", out]
    command += ["--attune", ATTUNE, "--set", "KEYS=32"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr + done.stdout
    report = json.loads(out.read_text())
    rows = report["rows"]
    assert [row["verdict"] for row in rows] == ["ok"] * len(rows)
    assert all(row["gflops"] > 0 for row in rows)
    assert not any(rows[0]["tunables"].values()) and all(rows[-1]["tunables"].values())
    assert rows[-1]["causal"] and rows[-1]["technique"] in done.stdout


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_names_of_techniques_are_the_programs(device):
    techniques = module(TECHNIQUES)
    file, ladder = techniques.LADDERS[device]
    text = techniques.with_values(file.read_text(), {name: 0 for name, _ in ladder})
    for name, _ in ladder:
        assert f" {name} = 0;" in text


def test_unknown_tunable_is_named():
    done = subprocess.run(
        [sys.executable, TECHNIQUES, "--attune", ATTUNE, "--set", "NOTHING=1"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "no tunable NOTHING" in done.stderr
