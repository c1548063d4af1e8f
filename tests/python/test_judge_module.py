"""attune judge of a torch module and of KernelBench's pairs: the schema that programs have."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from attune import openevolve

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("ATTUNE_BUILD_DIR", ROOT / "build")).resolve()
ATTUNE = Path(os.environ.get("ATTUNE_BIN", BUILD / "attune")).resolve()
NAIVE = ROOT / "examples" / "cpu_attention" / "naive.cpp"
PLAIN = "from attune.examples.module import Model as Plain\nclass Model(Plain):\n"
TINY = ["--shape", "2x4x16x8"]
PROBLEM = """\
import torch
class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(width, width)
    def forward(self, x):
        return self.linear(x).relu()
def get_inputs():
    return [torch.randn(4, 8)]
def get_init_inputs():
    return [8]
"""
NEW = PROBLEM[: PROBLEM.index("def get_inputs")].replace("class Model(", "class ModelNew(")


@pytest.fixture(autouse=True)
def on_one_processor(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def attune(*args, python=sys.executable, limit=300):
    more = ["--python", python] if python else []
    command = [ATTUNE, "judge", *map(str, args), *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=limit)


def judged(*args):
    done = attune(*args, "--json")
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert done.returncode == (0 if report["verdict"] == "ok" else 1), done.stderr
    return report


def written(tmp_path, text, name="m.py"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_right_module_has_the_fields_of_a_program(tmp_path):
    report = judged(written(tmp_path, PLAIN + "    pass"), *TINY)
    assert report["verdict"] == "ok" and report["contract"] == "Model" and report["errors"] == []
    shape = report["shapes"][0]
    assert shape["shape"] == "2x16x32" and shape["samples"] == 15
    assert 0 < shape["speedup"]["low"] <= shape["speedup"]["mid"] <= shape["speedup"]["high"]
    assert report["combined_score"] == shape["speedup"]["mid"] and report["all_correct"]
    program = subprocess.run(
        [ATTUNE, "judge", NAIVE, "--shape", "1x2x96x32", "--json"], capture_output=True, timeout=300
    )
    program = json.loads(program.stdout)
    assert set(program) <= set(report) and program["schema"] == report["schema"]
    assert set(program["shapes"][0]) == set(shape)
    assert set(program["machine"]) <= set(report["machine"])


@pytest.mark.parametrize(
    "text,verdict,stage,line",
    [
        (PLAIN + "    def forward(self, x): return x", "wrong_result", "check", 0),
        (
            PLAIN + "    def forward(self, x):\n        return x @ x.T.z",
            "launch_failed",
            "check",
            4,
        ),
        ("import torch\nx = (", "compile_failed", "compile", 2),
        pytest.param("x = 1", "compile_failed", "compile", 0, marks=pytest.mark.full),
        pytest.param(
            PLAIN + "    def forward(self, x): import os; os._exit(0)",
            "crashed",
            "check",
            0,
            marks=pytest.mark.full,
        ),
    ],
)
def test_a_refused_module(tmp_path, text, verdict, stage, line):
    report = judged(written(tmp_path, text), *TINY)
    assert (report["verdict"], report["stage"]) == (verdict, stage), report
    assert report["why"] and not report["shapes"] and report["combined_score"] == 0
    assert [e["line"] for e in report["errors"]] == ([line] if line else [])


@pytest.mark.full
def test_a_pair_of_kernelbench(tmp_path):
    problem = written(tmp_path, PROBLEM, "problem.py")
    new = written(tmp_path, NEW, "new.py")
    report = judged(new, "--reference", problem)
    assert report["verdict"] == "ok" and report["contract"] == "ModelNew"
    assert report["reference"] == str(problem) and report["limit"] == 1e-4
    wrong = written(tmp_path, NEW.replace(".relu()", ""), "wrong.py")
    done = attune(wrong, "--reference", problem)
    assert done.returncode == 1 and "verdict   wrong_result" in done.stdout


@pytest.mark.full
def test_openevolves_evaluator_takes_a_module_and_a_pair(tmp_path):
    def numbers(result):
        return getattr(result, "metrics", result)

    python = ["--python", sys.executable]
    judge = openevolve.evaluator(*TINY, *python)
    right = numbers(judge(written(tmp_path, PLAIN + "    pass")))
    assert right["correct"] == 1 and right["valid_benchmarks"] == 1
    assert right["combined_score"] == right["speed_over_reference"] > 0
    assert "avg_tflops" not in right and "efficiency_percent" not in right
    wrong = numbers(judge(written(tmp_path, PLAIN + "    def forward(self, x): return x")))
    assert wrong["combined_score"] == wrong["correct"] == 0
    pair = openevolve.evaluator("--reference", written(tmp_path, PROBLEM, "problem.py"), *python)
    new = numbers(pair(written(tmp_path, NEW, "new.py")))
    assert new["correct"] == 1 and new["combined_score"] > 0


def test_wrong_usage_and_a_python_that_cannot(tmp_path):
    module = written(tmp_path, PLAIN + "    pass")
    for options, words in [
        ([module, "--causal"], "--causal: it is for programs"),
        ([module, *TINY, *TINY], "a module is judged at one"),
        ([module, "--shape", "2x4/2x16x8"], "one number of heads"),
        ([module, "--reference", module, *TINY], "its get_inputs makes the inputs"),
        ([module, "--device", "cuda"], "torch finds no GPU here"),
        ([tmp_path / "none.py"], "there is no such file"),
        ([NAIVE, "--reference", module], "--reference is for modules"),
        ([module, "--modules"], "--modules is for --self-test"),
        (["--self-test"], "--python: it is for modules"),
        (["--self-test", "--modules", "--device", "cuda"], "they are judged on the CPU"),
    ]:
        done = attune(*options)
        assert done.returncode == 2 and words in done.stderr and not done.stdout, done.stderr
    done = attune(module, python=tmp_path / "python")
    assert done.returncode == 2 and "there is no" in done.stderr
    without = written(tmp_path, f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n', "python")
    without.chmod(0o755)
    done = attune(module, python=without)
    assert done.returncode == 1 and "no verdict" in done.stderr and "--python" in done.stderr


def test_a_broken_baseline_is_no_verdict(tmp_path):
    new = written(tmp_path, NEW, "new.py")
    done = attune(new, "--reference", written(tmp_path, "x = 1", "problem.py"))
    assert done.returncode == 1 and "it defines no Model" in done.stderr and not done.stdout
    assert "--python" not in done.stderr


def test_the_self_test_of_modules_says_what_it_lacks(tmp_path):
    without = written(tmp_path, f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n', "python")
    without.chmod(0o755)
    done = attune("--self-test", "--modules", python=without)
    assert done.returncode == 1 and not done.stdout
    assert "judged by Python with torch" in done.stderr and "--python names another" in done.stderr


@pytest.mark.full
def test_the_self_test_of_modules_refuses_every_cheat():
    done = attune("--self-test", "--modules", "--json", limit=1800)
    report = json.loads(done.stdout)
    listed = json.loads((ROOT / "tests/python/modules/manifest.json").read_text())["fixtures"]
    honest = sum(one["expected"] == ["ok"] for one in listed)
    assert done.returncode == 0, done.stderr
    assert report["passed"] == report["controls"] == honest
    assert report["refused"] == report["cheats"] == len(listed) - honest
    assert [one["fixture"] + ".py" for one in report["fixtures"]] == [one["file"] for one in listed]
