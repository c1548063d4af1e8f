"""attune evolve of a torch module under Attune's own judge: refusals, report, resume, replay."""

import json
import os
import re
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ATTUNE = Path(os.environ.get("ATTUNE_BIN", ROOT / "build" / "attune")).resolve()
TINY = ["--shape", "2x4x16x8"]

MODULE = """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.linear = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        TIMES = 400  # EVOLVE-PARAM TIMES {400,1}
        # EVOLVE-BLOCK-START sum
        out = self.linear(x)
        for _ in range(TIMES):
            y = x.relu()
        # EVOLVE-BLOCK-END
        return out + y
"""
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
NEW = NEW.replace("        return", "        MODE = 1  # EVOLVE-PARAM MODE {1,2}\n        return")


@pytest.fixture
def attune(tmp_path):
    def run(*args):
        env = os.environ | {
            "ATTUNE_CACHE_DIR": str(tmp_path / "cache"),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        command = [ATTUNE, *map(str, args)]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=300, cwd=tmp_path, env=env
        )

    def evolve(*args):
        return run("evolve", *args, "--python", sys.executable, "-o", "run")

    (tmp_path / "m.py").write_text(MODULE)
    run.evolve, run.folder = evolve, tmp_path
    return run


def records(folder):
    with closing(sqlite3.connect(folder / "run.db")) as db:
        return [json.loads(row[0]) for row in db.execute("SELECT json FROM record ORDER BY n")]


@pytest.mark.parametrize(
    "text, options, said",
    [
        ("import torch\nclass Model: pass\n", [], "nothing in it may change"),
        (MODULE.replace("        # EVOLVE-BLOCK-END\n", ""), [], "line 12: EVOLVE-BLOCK-START"),
        (MODULE.replace("Model", "Layer"), [], "it defines no Model"),
        (MODULE.replace("Model", "ModelNew"), [], "--reference FILE"),
        (MODULE, ["--reference", "m.py"], "it defines no ModelNew"),
        (MODULE, ["--metric", "x"], "by its speed"),
        (MODULE, ["--threads", "2"], "--threads: it is for kernels of attention"),
        (MODULE, ["--shape", "1x2/1x8x8"], "one number of heads"),
        (MODULE, ["--python", "/nowhere/python"], "there is no /nowhere/python"),
        (MODULE, ["-o", "m.py/run"], "cannot make the folder m.py/run"),
        (MODULE, ["-o", "/proc/run"], "cannot make the folder /proc/run"),
    ],
)
def test_what_cannot_be_evolved_is_refused_before_anything_runs(attune, text, options, said):
    (attune.folder / "m.py").write_text(text)
    place = [] if "-o" in options else ["-o", "run"]
    done = attune("evolve", "m.py", "-i", "5", *place, *options)
    assert done.returncode == 2 and said in done.stderr, done.stderr
    assert "evaluating the start" not in done.stderr
    assert not (attune.folder / "run").exists()


@pytest.mark.parametrize(
    "text, said",
    [
        (MODULE.replace("return out + y", "return (out + y"), r"line 17.*was never closed"),
        (MODULE.replace("return out + y", "return out @ x"), r"RuntimeError"),
    ],
)
def test_a_start_that_the_judge_refuses_says_why_and_leaves_no_run(attune, text, said):
    (attune.folder / "m.py").write_text(text)
    done = attune.evolve("m.py", "-i", "5", *TINY)
    assert done.returncode == 1 and "the start, m.py, has no score" in done.stderr, done.stderr
    assert re.search(said, done.stderr), done.stderr
    assert not (attune.folder / "run").exists()


# In place of Python with torch: a judge with the same words, whose numbers follow from the text.
JUDGE = """\
import json, re, sys
if sys.argv[1] == "-c":
    print("3.11.0")
    sys.exit()
given = dict(zip(sys.argv[3::2], sys.argv[4::2]))
text = open(given["--path"]).read()
if "--baseline" in given:
    assert "TIMES = 400" in open(given["--baseline"]).read()
    assert "evaluation" in given["--baseline"] and (given["--batch"], given["--seq"]) == ("2", "16")
else:
    assert "get_inputs" in open(given["--reference"]).read()
report = {"verdict": "ok", "why": "", "error": 1e-7, "limit": 1e-5, "not_held": ["a gap"]}
if "2 * x" in text:
    report.update(verdict="wrong_result", why="wrong result at sequence length 3")
else:
    mid = 2.0 if "TIMES = 1 " in text or "MODE = 2" in text else 1.0
    speedup = {"low": 0.9 * mid, "mid": mid, "high": 1.1 * mid}
    report["shapes"] = [{"seconds": 0.1 / mid, "library_seconds": 0.1, "speedup": speedup}]
print(json.dumps(report))
sys.exit(report["verdict"] != "ok")
"""


@pytest.fixture
def judge(attune):
    python = attune.folder / "python"
    (attune.folder / "judge.py").write_text(JUDGE)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {attune.folder}/judge.py "$@"\n')
    python.chmod(0o755)
    return ["--python", python, "-o", "run"]


def test_a_module_is_evolved_and_the_numbers_are_told_to_be_ours(attune, judge):
    done = attune("evolve", "m.py", "-i", "2", *TINY, *judge, "--json", "result.json")
    assert done.returncode == 0, done.stderr
    assert "this kernel has a gap" in done.stderr
    assert "those of Attune's judge, not claims" in done.stdout and "claimed" not in done.stdout
    result = json.loads((attune.folder / "result.json").read_text())
    assert result["best"] == "m[TIMES=1]", done.stdout
    best = next(row for row in result["rows"] if "evolved" in row["roles"])
    assert best["over_start"] == pytest.approx([2, 2, 2]) and best["measured"]["score"] == 2
    assert best["measured"]["metrics"]["milliseconds"] == pytest.approx(50)
    run = attune.folder / "run"
    assert "TIMES = 1 " in (run / "best/best_program.py").read_text()
    report = (run / "report.html").read_text()
    assert "What the judge measured" in report and "laimed by" not in report
    meta = json.loads((run / "evidence.json").read_text())["meta"]
    assert meta["external"]["scores_by"] == "Attune's judge"
    assert meta["environment"]["python"] == "3.11.0"
    assert "--device cpu --shape 2x4x16x8" in (run / "best/best_program_info.json").read_text()
    assert attune("evolve", "--replay", "run").returncode == 0
    assert attune("report", "run").returncode == 0
    other = attune("evolve", "--resume", "run", "--device", "cpu")
    assert other.returncode == 2 and "keeps what it was begun with" in other.stderr


def test_a_terminal_shows_each_evaluation_of_a_long_judgement(attune, judge):
    ours, its = os.openpty()
    command = [ATTUNE, "evolve", "m.py", "-i", "2", *TINY, *map(str, judge)]
    process = subprocess.Popen(command, cwd=attune.folder, stdout=subprocess.DEVNULL, stderr=its)
    os.close(its)
    said = b""
    with suppress(OSError):  # the other end is closed
        while part := os.read(ours, 4096):
            said += part
    os.close(ours)
    assert process.wait(timeout=60) == 0, said
    assert b"judging m[TIMES=1]: evaluation 2, of m" in said
    assert b"final comparison: evaluation 2, of m" in said


def test_a_person_proposes_a_block_of_a_module(attune, judge):
    answers = attune.folder / "answers"
    answers.mkdir()
    wrong = MODULE.replace("out = self.linear(x)", "out = self.linear(2 * x)")
    (answers / "answer-a.py").write_text(wrong)
    options = ["--propose", "manual:answers", "-i", "4", *TINY]
    done = attune("evolve", "m.py", *options, *judge)
    assert done.returncode == 0, done.stderr
    task = (answers / "TASK.md").read_text()
    assert "torch module" in task and "Every call has new inputs" in task
    manual = [r for r in records(attune.folder / "run") if r["proposal"]["op"] == "manual"]
    assert [r["evaluation"]["verdict"] for r in manual] == ["wrong_result"], done.stderr
    assert attune("evolve", "--replay", "run").returncode == 0


def test_a_pair_of_kernelbench_is_evolved(attune, judge):
    (attune.folder / "problem.py").write_text(PROBLEM)
    (attune.folder / "new.py").write_text(NEW)
    done = attune("evolve", "new.py", "--reference", "problem.py", "-i", "2", *judge)
    assert done.returncode == 0 and "new[MODE=2]" in done.stdout, done.stderr
    (attune.folder / "problem.py").write_text(PROBLEM + "\n")
    changed = attune("evolve", "--resume", "run", "--budget", "3ev")
    assert changed.returncode == 2 and "the reference has changed" in changed.stderr


def test_what_the_judge_lacks_is_said_in_a_line(attune):
    python = attune.folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    python.chmod(0o755)
    done = attune("evolve", "m.py", "-i", "2", "-o", "run", *TINY, "--python", python)
    assert done.returncode == 1 and "has no score" in done.stderr, done.stderr
    assert "judged by Python with torch" in done.stderr and "--python names another" in done.stderr
    done = attune.evolve("m.py", "-i", "2", "--device", "cuda", *TINY)
    assert done.returncode == 1 and "torch finds no GPU here" in done.stderr, done.stderr
    assert "usage" not in done.stderr and not (attune.folder / "run").exists()


# Each judgement takes half a second, as the real one takes some.
SLOW = JUDGE.replace("given = dict", "import time; time.sleep(0.5)\ngiven = dict", 1)
MANY = MODULE.replace("{400,1}", "{400,300,200,100,50,1}")


@pytest.fixture
def slow(attune, judge):
    (attune.folder / "judge.py").write_text(SLOW)
    (attune.folder / "m.py").write_text(MANY)
    options = ["m.py", *TINY, "--python", attune.folder / "python", "-i", "6", "-o", "run"]

    def start(done=2):
        process = subprocess.Popen(
            [ATTUNE, "evolve", *map(str, options)],
            cwd=attune.folder,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"ATTUNE_CACHE_DIR": str(attune.folder / "cache")},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        end = time.monotonic() + 60
        while time.monotonic() < end and process.poll() is None:
            with suppress(sqlite3.OperationalError):  # it is not there yet
                if (attune.folder / "run/run.db").exists():
                    if len(records(attune.folder / "run")) >= done:
                        return process
            time.sleep(0.05)
        process.kill()
        raise AssertionError(process.communicate()[1])

    return start


def goes_on(attune, before):
    done = attune("evolve", "--resume", "run")
    assert done.returncode in (0, 1) and "attune: " not in done.stderr, done.stderr
    after = records(attune.folder / "run")
    assert len(after) == 6 and after[: len(before)] == before
    assert attune("evolve", "--replay", "run").returncode == 0


def test_ctrl_c_in_the_middle_of_a_module_loses_nothing(attune, slow):
    process = slow()
    busy = attune("evolve", "--resume", "run")
    assert busy.returncode == 1 and f"in use by process {process.pid}" in busy.stderr
    other = attune("evolve", "m.py", *TINY, "--python", "./python", "-o", "run")
    assert other.returncode == 2 and "already holds a run" in other.stderr
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and "go on with: attune evolve --resume run" in said, said
    assert (attune.folder / "run/report.html").exists()
    assert not list((attune.folder / "run").glob("scratch/*"))
    before = records(attune.folder / "run")
    assert 2 <= len(before) < 6
    goes_on(attune, before)


@pytest.mark.full
def test_a_killed_run_of_a_module_goes_on(attune, slow):
    process = slow()
    process.kill()
    process.communicate()
    before = records(attune.folder / "run")
    judge = str(attune.folder / "judge.py").encode()
    end = time.monotonic() + 10
    while time.monotonic() < end:  # the judge of it ends with it
        commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
        if not any(judge in command for command in commands):
            break
        time.sleep(0.1)
    assert not any(judge in command for command in commands)
    goes_on(attune, before)


@pytest.mark.full
@pytest.mark.parametrize("kilobytes, said", [(0, "File too large"), (40, "What was committed")])
def test_a_full_disk_ends_a_run_of_a_module_with_its_reason(attune, judge, kilobytes, said):
    (attune.folder / "m.py").write_text(MANY)
    command = [ATTUNE, "evolve", "m.py", *TINY, *map(str, judge), "-i", "6"]
    size = kilobytes << 10
    full = subprocess.run(
        command,
        cwd=attune.folder,
        capture_output=True,
        text=True,
        timeout=100,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
    )
    assert full.returncode == 1 and said in full.stderr, full.stderr
    if kilobytes == 0:
        assert not (attune.folder / "run").exists()
        return
    goes_on(attune, records(attune.folder / "run"))


@pytest.mark.full
def test_the_real_judge_gives_the_start_a_score(attune):
    done = attune.evolve("m.py", "-i", "1", *TINY)
    assert done.returncode == 0, done.stderr
    claims = records(attune.folder / "run")[0]["evaluation"]["claims"]["by_the_evaluator"]
    assert claims["metrics"]["speedup"] > 0 and claims["metrics"]["milliseconds"] > 0
