"""attune judge as a user and an agent meet it: verdicts, exit codes, the fields of --json."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ATTUNE = Path(os.environ.get("ATTUNE_BIN", ROOT / "build" / "attune")).resolve()
NAIVE = ROOT / "examples" / "cpu_attention" / "naive.cpp"
BACKWARD = ROOT / "examples" / "cpu_backward" / "naive.cpp"
TINY = ["--shape", "1x2x96x32"]
KEYS = "causal ? i + 1 : seq_len"


def attune(*args, **kwargs):
    return subprocess.run(
        [ATTUNE, *map(str, args)], capture_output=True, text=True, timeout=120, **kwargs
    )


def judge(*args):
    return attune("judge", *args, *TINY)


def judged(*args):
    """The JSON, with the exit code that belongs to it."""
    result = judge(*args, "--json")
    report = json.loads(result.stdout)
    assert result.returncode == (0 if report["verdict"] == "ok" else 1), result.stderr
    return report


@pytest.fixture
def program(tmp_path):
    """The example with one place of it changed, as a file."""

    def write(part="", instead="", name="kernel.cpp"):
        text = NAIVE.read_text()
        assert part in text
        path = tmp_path / name
        path.write_text(text.replace(part, instead, 1) if part else text)
        return path

    return write


def test_a_right_program_is_ok():
    result = judge(NAIVE)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["verdict", "ok"]
    assert "speed against the library" in result.stdout
    assert "1x2x96x32 f32" in result.stdout
    assert "judging" in result.stderr and "judging" not in result.stdout


def test_the_backward_pass_of_a_program(tmp_path):
    report = judged(BACKWARD, "--shape", "2x4/2x40x24", "--causal")
    assert report["verdict"] == "ok" and report["contract"] == "attune_candidate_backward", report
    assert [s["shape"] for s in report["shapes"]] == [
        "2x4/2x40x24 f32 causal backward",
        "1x2x96x32 f32 causal backward",
    ]
    assert 0 <= report["error"] <= report["limit"] and report["combined_score"] > 0
    assert all(s["library"].startswith("fused.") for s in report["shapes"])
    # With a forward pass beside it, it is asked for by its name.
    both = tmp_path / "both.cpp"
    both.write_text(
        BACKWARD.read_text()
        + "\nint attune_candidate(const attune_candidate_call*) { return 1; }\n"
    )
    assert judged(both)["verdict"] == "launch_failed"
    assert judged(both, "--pass", "backward")["verdict"] == "ok"
    wrong = tmp_path / "wrong.cpp"
    wrong.write_text(BACKWARD.read_text().replace("dv[d] += p[j]", "dv[d] = p[j]"))
    report = judged(wrong)
    assert report["verdict"] == "wrong_result" and "dv[" in report["why"], report


def test_json_has_every_field(tmp_path):
    report = judged(NAIVE, "--causal", "--shape", "2x1x33x16")
    assert report["schema"] == 1
    assert report["file"] == str(NAIVE)
    assert report["contract"] == "run_attention"
    assert report["verdict"] == "ok"
    assert report["stage"] in ("race", "measure")
    assert report["why"] == ""
    assert report["errors"] == []
    assert 0 <= report["error"] <= report["limit"]
    assert [s["shape"] for s in report["shapes"]] == [
        "2x1x33x16 f32 causal",
        "1x2x96x32 f32 causal",
    ]
    for shape in report["shapes"]:
        assert shape["seconds"] > 0 and shape["library_seconds"] > 0
        assert shape["gflops"] > 0
        assert 0 < shape["efficiency_percent"]
        speed = shape["speedup"]
        assert 0 <= speed["low"] <= speed["mid"]
        assert speed["high"] is None or speed["mid"] <= speed["high"]
    assert report["machine"]["threads"] == 1
    assert report["machine"]["peak_gflops"] > 0

    # What evaluators of evolutionary searches return.
    assert [b["seq_len"] for b in report["benchmarks"]] == [33, 96]
    assert set(report["benchmarks"][0]) == {
        *("batch", "heads", "seq_len", "head_dim", "tflops", "correct")
    }
    assert report["all_correct"] is True
    assert report["valid_benchmarks"] == 2
    assert report["avg_tflops"] > 0
    assert report["combined_score"] == pytest.approx(report["efficiency_percent"] / 100)


def test_json_goes_to_a_file(tmp_path):
    result = judge(NAIVE, "--json", tmp_path / "verdict.json")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("verdict")
    assert json.loads((tmp_path / "verdict.json").read_text())["verdict"] == "ok"


def test_a_wrong_result_is_refused(program):
    report = judged(program(KEYS, "seq_len"))  # it ignores causal
    assert report["verdict"] == "wrong_result"
    assert report["stage"] == "check"
    assert "causal" in report["why"]
    assert report["shapes"] == []
    assert report["all_correct"] is False
    assert report["combined_score"] == 0
    assert report["valid_benchmarks"] == 0


def test_what_does_not_compile_is_shown_by_line(program):
    path = program("float sum = 0;", "float sum = no_such_name;")
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if "no_such" in text)
    report = judged(path)
    assert report["verdict"] == "compile_failed"
    assert report["stage"] == "compile"
    assert report["errors"][0]["line"] == line
    assert report["errors"][0]["column"] > 0
    assert "no_such_name" in report["errors"][0]["message"]
    assert f"kernel.cpp:{line}:" in report["why"]

    result = judge(path)
    assert result.returncode == 1
    assert f"kernel.cpp:{line}:" in result.stdout


def test_without_an_entry_point_both_contracts_are_named(program):
    report = judged(program("void run_attention", "void compute_attention"))
    assert report["contract"] == "none"
    assert report["verdict"] == "compile_failed"
    assert "run_attention(const float* Q" in report["why"]
    assert "attune_candidate" in report["why"]


def test_the_other_contract_is_judged_too():
    report = judged(ROOT / "tests" / "evolve" / "candidates" / "honest_naive.cpp")
    assert report["contract"] == "attune_candidate"
    assert report["verdict"] == "ok", report["why"]


def test_the_suite_of_a_gpu_is_not_that_of_the_cpu():
    result = attune("judge", "--self-test", "--device", "cuda", "--json")
    if result.returncode == 0:
        assert json.loads(result.stdout)["device"] == "cuda"  # there is a GPU
        return
    assert result.returncode == 1 and not result.stdout
    assert "--self-test --device cuda:" in result.stderr


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "name the program to judge"),
        (["no_such_file.cpp"], "there is no such file"),
        (["no_such_file.rs"], "no extension of a program"),
        (["module.py"], "there is no such file"),
        ([NAIVE, "--self-test"], "leave FILE out"),
        ([NAIVE, "--device", "cuda"], "a program for the CPU"),
        ([NAIVE, "--device", "tpu"], "none of cpu, cuda"),
        ([NAIVE, "--dtype", "f16"], "another dtype"),
        ([NAIVE, "--threads", "2"], "one thread"),
        ([NAIVE, "--shape", "1x4/2x64x32"], "two numbers of heads"),
        ([NAIVE, "--pass", "backward"], "does not define attune_candidate_backward"),
        ([BACKWARD, "--pass", "forward"], "does not define run_attention"),
        (
            [ROOT / "examples" / "cuda_attention" / "naive.cu", "--pass", "backward"],
            "programs for a GPU have the forward pass alone",
        ),
        ([NAIVE, "--shape", "1x4x64"], "a shape has 4"),
        ([ROOT / "examples" / "cuda_attention" / "naive.cu", "--device", "cpu"], "for a GPU"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_usage(arguments, message):
    result = attune("judge", *arguments)
    assert result.returncode == 2, result.stderr
    assert message in result.stderr
    assert result.stdout == ""


def test_ctrl_c_ends_it(program):
    """Also while the program itself does not end."""
    path = program(
        "  const float scale", "  for (volatile int x = 0;; x = 1) {}\n  const float scale"
    )
    child = subprocess.Popen(
        [ATTUNE, "judge", path, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    child.stderr.readline()  # "judging ..."
    time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130, err
    assert out == ""
    assert "no verdict" in err


@pytest.mark.full
def test_self_test_refuses_every_cheat():
    result = attune("judge", "--self-test", "--json")
    report = json.loads(result.stdout)
    assert result.returncode == 0, result.stderr
    assert report["refused"] == report["cheats"] == 56
    assert report["passed"] == report["controls"] == 4
    assert report["unexpected"] == 0
