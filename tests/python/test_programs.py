"""python -m attune.evaluate and attune.sweep, as their documents show them."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from attune import _timing, bench, evaluate, sweep

SMALL = ["--batch", "2", "--seq", "16", "--n-embd", "32", "--n-head", "4", "--rounds", "3"]


PLAIN = "from attune.examples.module import Model as Plain\nclass Model(Plain):\n"


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def write(path, body):
    path.write_text(
        "import torch\nfrom attune.examples.module import Model as Plain\n\n\nclass Model(Plain):\n"
        "    def forward(self, x):\n        out = super().forward(x)\n        " + body + "\n"
    )
    return ["--path", str(path)]


def test_ours_is_right(capsys):
    assert evaluate.main(SMALL) == 0
    text = capsys.readouterr().out
    assert re.search(r"={60}\nFINAL RESULTS\n={60}\nCorrectness: PASS\n", text)
    assert re.search(r"Baseline time: [\d.]+ ms\nOptimized time: [\d.]+ ms\n", text)
    assert re.search(r"Speedup: [\d.]+x \([\d.]+\.\.[\d.]+\)\nScore: [\d.]+\n", text)


@pytest.mark.parametrize(
    "body", ["return out + 2e-5", "return out * float('nan')", "return out.half().float()"]
)
def test_what_is_wrong_has_no_score(tmp_path, capsys, body):
    assert evaluate.main([*SMALL, *write(tmp_path / "m.py", body), "--json", "-"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert not result["correct"] and result["score"] == 0 and "speedup" not in result


def test_right_only_at_first_is_wrong(tmp_path, capsys):
    body = "self.n = getattr(self, 'n', 0) + 1; return out if self.n <= 12 else out * 1.01"
    assert evaluate.main([*SMALL, *write(tmp_path / "m.py", body)]) == 1
    assert "Correctness: FAIL" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text,words",
    [
        ("x = 1", "defines no Model"),
        ("raise OSError('no')", "cannot be imported: OSError: no"),
        ("import sys; sys.exit(0)", "cannot be imported: SystemExit: 0"),
        ("Model = 3", "cannot be made: TypeError"),
        (PLAIN + "    def forward(self, x): raise SystemExit(0)", "cannot be called: SystemExit"),
        (PLAIN + "    def forward(self, x): return x, x", "its result is no tensor"),
        (PLAIN + "    def forward(self, x): return x[:1]", "it gives (1, 16, 32)"),
        (
            "import torch\nModel = lambda n_embd: torch.nn.Linear(n_embd, n_embd)",
            "no parameters weight",
        ),
    ],
)
def test_what_cannot_be_tried_is_said(tmp_path, capsys, text, words):
    (tmp_path / "m.py").write_text(text)
    assert evaluate.main([*SMALL, "--path", str(tmp_path / "m.py")]) == 2
    assert words in capsys.readouterr().err
    assert evaluate.main([*SMALL, "--path", str(tmp_path / "none.py")]) == 2


@pytest.mark.parametrize("key", ["x.data_ptr()", "(x.data_ptr(), x._version, x[0, 0, 0].item())"])
def test_remembering_does_not_pay(tmp_path, capsys, key):
    body = (
        f"memo = self.__dict__.setdefault('memo', {{}}); key = {key}\n"
        "        if key not in memo: import time; time.sleep(0.1); memo[key] = out\n"
        "        return memo[key]"
    )
    code = evaluate.main([*SMALL, *write(tmp_path / "m.py", body), "--json", "-"])
    result = json.loads(capsys.readouterr().out)
    assert code == 1 or result["score"] < 0.5  # wrong, or as slow as what it tries to skip


def test_a_candidates_switches_are_its_own(tmp_path, monkeypatch):
    module = tmp_path / "m.py"
    module.write_text(
        "import torch; torch.set_float32_matmul_precision('medium')\n" + PLAIN + "    pass"
    )
    options = evaluate.parse([*SMALL, "--path", str(module)])
    seen = {}
    before = torch.get_float32_matmul_precision()
    try:
        contest = evaluate.Contest(options)
        for model, name in ((contest.baseline, "baseline"), (contest.candidate, "candidate")):
            # No product is computed: with this switch some processors' own are broken.
            model.forward = lambda x, name=name: (
                seen.update({name: torch.get_float32_matmul_precision()}) or x
            )
        contest.compare()
    finally:
        torch.set_float32_matmul_precision(before)
    assert seen["baseline"] == before != seen["candidate"]  # which torch may call by another name


@pytest.mark.parametrize(
    "program,arguments",
    [
        (evaluate, ["--trials", "0"]),
        (evaluate, ["--rounds", "0"]),
        (evaluate, ["--device", "cuda"]),
        (sweep, ["--rounds", "0"]),
        (sweep, ["--device", "cuda"]),
        (sweep, ["--out", "/dev/null/x.json"]),
        (bench, ["--rounds", "0"]),
        (bench, ["--seq", "0"]),
        (bench, ["--device", "cuda"]),
    ],
)
def test_bad_arguments_are_named(program, arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        program.main(arguments)
    assert stop.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_timed_results_are_looked_at(tmp_path, capsys):
    body = (
        "self.n = getattr(self, 'n', 0) + 1\n"
        "        return out * 1.01 if 10 < self.n < 30 else out"  # while it is timed, and no longer
    )
    arguments = [*write(tmp_path / "m.py", body), "--batch", "8", "--seq", "64"]
    assert evaluate.main([*SMALL, *arguments, "--json", "-"]) == 1
    assert not json.loads(capsys.readouterr().out)["correct"]
    assert evaluate.worst_of([1.0, float("nan"), 2.0]) != evaluate.worst_of([1.0, 2.0])


def test_what_was_measured_is_printed_before_a_disk_is_full(capsys):
    options = ["--shape", "1x1x16x8", "--dtype", "f32", "--rounds", "1", "--repetitions", "1"]
    assert sweep.main([*options, "--out", "/dev/full"]) == 2
    said = capsys.readouterr()
    assert "attune_auto" in said.out and "/dev/full cannot be written" in said.err
    assert evaluate.main([*SMALL, "--json", "/dev/full"]) == 2
    assert "Correctness: PASS" in capsys.readouterr().out


def test_ctrl_c_is_no_error_to_trace(tmp_path):
    module = tmp_path / "m.py"
    module.write_text(
        "import os, signal; os.kill(os.getpid(), signal.SIGINT)\n" + PLAIN + "    pass"
    )
    command = [sys.executable, "-m", "attune.evaluate", *SMALL, "--path", str(module)]
    environment = {**os.environ, "PYTHONPATH": str(Path(evaluate.__file__).parents[1])}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=environment,
        # What runs in the background of a script is started deaf to it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert done.returncode == 130 and done.stderr.endswith("stopped\n")
    assert "Traceback" not in done.stderr


def test_sweep(tmp_path, capsys):
    out = tmp_path / "evidence" / "evo_attention_sweep.json"
    options = ["--shape", "1x2x64x16", "--dtype", "f32", "--rounds", "2", "--out", str(out)]
    assert sweep.main(options) in (0, 1)
    results = {r["name"]: r for r in json.loads(out.read_text())}
    assert {"sdpa_default", "sdpa_math_only", "sdpa_bf16", "attune_auto", "attune_naive"} <= set(
        results
    )
    assert results["sdpa_default"]["fitness"] == 1
    ours = results["attune_auto"]
    assert ours["max_diff"] < 1e-5 and ours["latency_us"] > 0 and len(ours["repetitions_us"]) == 3
    low, high = ours["interval"]
    assert low <= ours["fitness"] <= high
    ranked = [r["fitness"] for r in json.loads(out.read_text())]
    assert ranked == sorted(ranked, reverse=True)
    assert "attune_auto" in capsys.readouterr().out


def test_a_wrong_variant_has_no_fitness(monkeypatch):
    found = sweep.variants("cpu")
    found["attune_auto"] = (lambda q, k, v: v * 1.01, found["attune_auto"][1])
    monkeypatch.setattr(sweep, "variants", lambda device: found)
    results = {r["name"]: r for r in sweep.measure((1, 2, 16, 8), torch.float32, "cpu", 1, 2)}
    assert results["attune_auto"]["fitness"] == 0 and "wrong by" in results["attune_auto"]["why"]


def test_bad_shapes_are_refused(capsys):
    with pytest.raises(SystemExit) as error:
        sweep.main(["--shape", "1x2x3"])
    assert error.value.code == 2 and "BxHxSxD" in capsys.readouterr().err


def test_ratios_are_paired():
    slower, faster = [2.0, 20.0, 4.0], [1.0, 10.0, 2.0]
    assert _timing.ratio(slower, faster) == pytest.approx((2, 2, 2))


@pytest.mark.parametrize("kind,first", [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_bench_draws(tmp_path, capsys, kind, first):
    path = tmp_path / f"speed.{kind}"
    options = ["--seq", "64,32", "--heads", "2", "--dim", "16", "--rounds", "2", "--causal"]
    assert bench.main([*options, "--plot", str(path), "--json", "-"]) == 0
    assert path.read_bytes().startswith(first)
    rows = json.loads(capsys.readouterr().out)
    assert [row["seq"] for row in rows] == sorted(row["seq"] for row in rows)
    names = {row["name"] for row in rows}
    assert {"sdpa_default", "attune_auto", "attune_naive"} <= names
    assert all(row["ms"] > 0 and row["tflops"] > 0 for row in rows)


def test_bench_refuses_what_it_cannot_draw(capsys):
    for options in (["--plot", "x.txt"], ["--seq", "a"]):
        with pytest.raises(SystemExit):
            bench.main(options)


def test_options_have_the_spellings_of_the_tool(capsys):
    assert evaluate.parse([*SMALL, "--json"]).json == "-"
    small = ["--seq", "32", "--heads", "1", "--dim", "16", "--rounds", "1"]
    assert bench.main([*small, "--dtype", "fp32", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)
    with pytest.raises(SystemExit):
        sweep.main(["--dtype", "fp64"])
    assert "'fp64'" in capsys.readouterr().err
