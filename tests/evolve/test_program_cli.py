"""attune evolve PROGRAM as a user meets it: mistakes, a run's files, resume, kill, replay."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ATTUNE = Path(os.environ.get("ATTUNE_BIN", ROOT / "build" / "attune")).resolve()
EXAMPLE = ROOT / "examples" / "cpu_attention"
NAIVE = (EXAMPLE / "naive.cpp").read_text()
TINY = ["--shape", "1x1x64x32"]

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")


def attune(*args, cwd, **kwargs):
    return subprocess.run(
        [ATTUNE, *map(str, args)], capture_output=True, text=True, timeout=200, cwd=cwd, **kwargs
    )


def is_done(result):
    """The run went to its end. On a busy machine its last comparison may fail, which is exit 1."""
    return result.returncode == 0 or result.returncode == 1 and "attune: " not in result.stderr


def outside(text):
    """The lines that may not change."""
    text = re.sub(
        r"(EVOLVE-BLOCK-START[^\n]*\n).*?(// EVOLVE-BLOCK-END)", r"\1\2", text, flags=re.S
    )
    return re.sub(r"// attune-flags:[^\n]*\n", "", text)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A small run of the example. Not to be changed."""
    folder = tmp_path_factory.mktemp("program") / "run"
    result = attune(
        "evolve",
        EXAMPLE / "naive.cpp",
        "--with",
        EXAMPLE / "catalogue",
        *TINY,
        "--budget",
        "8ev",
        "--run",
        folder,
        cwd=folder.parent,
    )
    assert is_done(result), result.stderr
    return folder, result


def test_the_result_is_a_source_file_that_the_judge_takes(finished, tmp_path):
    folder, result = finished
    assert "program: " in result.stderr and "steps.diff" in result.stderr
    best = (folder / "best" / "best_program.cpp").read_text()
    assert outside(best) == outside(NAIVE)
    judged = attune("judge", folder / "best" / "best_program.cpp", *TINY, "--json", cwd=tmp_path)
    assert json.loads(judged.stdout)["verdict"] == "ok", judged.stdout


def test_every_candidate_is_kept_and_keeps_what_is_outside(finished):
    folder, _ = finished
    texts = [path.read_text() for path in (folder / "programs").glob("*.cpp")]
    assert len(texts) >= 5
    assert {outside(text) for text in texts} == {outside(NAIVE)}
    evidence = json.loads((folder / "evidence.json").read_text())
    assert "library" in json.dumps(evidence)


def test_a_program_of_the_backward_pass_is_evolved(tmp_path):
    program = ROOT / "examples" / "cpu_backward" / "naive.cpp"
    done = attune(
        "evolve", program, "--shape", "1x2x48x16", "--budget", "4ev", "--run", "run", cwd=tmp_path
    )
    assert is_done(done), done.stderr
    evidence = json.loads((tmp_path / "run/evidence.json").read_text())
    assert evidence["meta"]["shapes"][0]["name"] == "1x2x48x16 f32 backward"
    assert evidence["candidates"][0]["evaluation"]["verdict"] == "ok"
    best = tmp_path / "run/best/best_program.cpp"
    judged = attune("judge", best, "--shape", "1x2x48x16", "--json", cwd=tmp_path)
    assert json.loads(judged.stdout)["verdict"] == "ok", judged.stdout
    assert attune("evolve", "--replay", "run", cwd=tmp_path).returncode == 0
    for options, said in [
        ([program, "--pass", "forward"], "does not define run_attention"),
        ([program, "--lse"], "--lse: the backward pass always reads it"),
        (["--pass", "backward"], "--pass: it is for programs"),
        (["--resume", "run", "--pass", "forward"], "was begun with backward, not with forward"),
    ]:
        refused = attune("evolve", *options, "-i", "2", cwd=tmp_path)
        assert refused.returncode == 2 and said in refused.stderr, refused.stderr


def test_a_run_is_replayed_without_its_files(finished, tmp_path):
    folder = tmp_path / "copy"
    folder.mkdir()
    shutil.copy(finished[0] / "run.db", folder)
    result = attune("evolve", "--replay", folder, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "replayed 8 evaluations" in result.stdout


@pytest.mark.full
def test_a_run_goes_on_without_the_program(finished, tmp_path):
    folder = Path(shutil.copytree(finished[0], tmp_path / "copy"))
    result = attune("evolve", "--resume", folder, "--budget", "10ev", cwd=tmp_path)
    assert is_done(result), result.stderr
    assert "10 candidates tried" in result.stdout
    assert attune("evolve", "--replay", folder, cwd=tmp_path).returncode == 0


def test_a_killed_run_goes_on(tmp_path):
    arguments = [EXAMPLE / "naive.cpp", *TINY, "--budget", "6ev", "--run", "run"]
    process = subprocess.Popen(
        [ATTUNE, "evolve", *arguments], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 100
        while len(list((tmp_path / "run" / "programs").glob("*.cpp"))) < 2:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    result = attune("evolve", "--resume", "run", cwd=tmp_path)
    assert is_done(result), result.stderr
    assert attune("evolve", "--replay", "run", cwd=tmp_path).returncode == 0


@pytest.mark.full
def test_an_answer_with_a_weaker_contract_is_invalid(tmp_path):
    cheats = ROOT / "tests" / "evolve" / "cheats"
    honest = (cheats / "honest.h").read_text()
    block = "// EVOLVE-BLOCK-START entry\n{}\n// EVOLVE-BLOCK-END\n"
    entry = "int attune_candidate(const attune_candidate_call* c) { return honest::attention(c); }"
    weaker = NAIVE[NAIVE.index("#include") :].replace("// EVOLVE", "// ")
    (tmp_path / "start.cpp").write_text(honest + block.format(entry))
    (tmp_path / "weaker.cpp").write_text(honest + block.format(weaker))
    result = attune(
        "evolve",
        "start.cpp",
        "--with",
        "weaker.cpp",
        *TINY,
        "--budget",
        "12ev",
        "--run",
        "run",
        cwd=tmp_path,
    )
    assert is_done(result), result.stderr
    evidence = json.loads((tmp_path / "run" / "evidence.json").read_text())
    weaker = [c for c in evidence["candidates"] if "entry=weaker" in c["candidate"]["id"]]
    assert weaker
    for candidate in weaker:
        assert candidate["evaluation"]["verdict"] == "invalid"
        assert "it defines run_attention" in candidate["evaluation"]["why"]


def test_genes_of_a_program_are_listed(tmp_path):
    result = attune(
        "evolve",
        EXAMPLE / "naive.cpp",
        "--with",
        EXAMPLE / "catalogue",
        "--list-genes",
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    for gene in ["block.attention", "KEYS", "ROWS", "loop.attention.1", "flags.math"]:
        assert gene in result.stdout


def without_markers(text):
    return text.replace("EVOLVE-BLOCK", "BLOCK")


@pytest.mark.parametrize(
    "change, complaint",
    [
        (without_markers, "nothing in it may change"),
        (lambda t: t.replace("// EVOLVE-BLOCK-END", ""), "line 12: EVOLVE-BLOCK-START without"),
        (lambda t: t.replace("// EVOLVE-BLOCK-START", ""), "EVOLVE-BLOCK-END without"),
        (lambda t: t.replace("run_attention", "my_attention"), "run_attention"),
        (lambda t: t.replace("float largest =", "flot largest ="), "program.cpp:18"),
        (lambda t: t + "// EVOLVE-PARAM N {}\n", "cannot be a value"),
        (lambda t: t + "// attune-flags: -fplugin=x.so\n", "-fplugin=x.so"),
        (lambda t: t.replace("<cmath>", '"/etc/passwd"'), "/etc/passwd"),
        (lambda t: "", "nothing in it may change"),
    ],
)
def test_a_program_that_cannot_be_evolved_costs_nothing(tmp_path, change, complaint):
    (tmp_path / "program.cpp").write_text(change(NAIVE))
    result = attune("evolve", "program.cpp", *TINY, "--budget", "2ev", cwd=tmp_path)
    assert result.returncode in (1, 2)
    assert complaint in result.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "program.cpp"]


@pytest.mark.parametrize(
    "args, complaint",
    [
        (["nowhere.cpp"], "nowhere.cpp: there is no such file"),
        (["program.txt"], "'.txt' is no extension of a program"),
        (["program.cpp", "--with", "nowhere"], "nowhere"),
        (["--with", "program.cpp"], "--with: it needs a PROGRAM"),
        (["program.cpp", "--start", "current"], "--start"),
        (["program.cpp", "--promote"], "--promote"),
        (["program.cpp", "--compile-tiles"], "--compile-tiles"),
        (["program.cpp", "--device", "cuda"], "a program for the CPU"),
        (["program.cpp", "--threads", "2"], "--threads"),
        (["program.cpp", "--dtype", "f16"], "run_attention does not have"),
    ],
)
def test_wrong_usage_is_explained(tmp_path, args, complaint):
    (tmp_path / "program.cpp").write_text(NAIVE)
    result = attune("evolve", *args, cwd=tmp_path)
    assert result.returncode == 2
    assert complaint in result.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "program.cpp"]
