"""python -m attune.sweep and attune.bench, as documents show them, and everybody's options."""

import json

import pytest
import torch
from attune import _timing, bench, evaluate, sweep


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


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


def test_what_was_measured_is_printed_before_a_disk_is_full(capsys):
    options = ["--shape", "1x1x16x8", "--dtype", "f32", "--rounds", "1", "--repetitions", "1"]
    assert sweep.main([*options, "--out", "/dev/full"]) == 2
    said = capsys.readouterr()
    assert "attune_auto" in said.out and "/dev/full cannot be written" in said.err


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
    assert evaluate.parse(["--json"]).json == "-"
    small = ["--seq", "32", "--heads", "1", "--dim", "16", "--rounds", "1"]
    assert bench.main([*small, "--dtype", "fp32", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)
    with pytest.raises(SystemExit):
        sweep.main(["--dtype", "fp64"])
    assert "'fp64'" in capsys.readouterr().err
