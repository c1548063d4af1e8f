"""The comparison on a GPU, as far as it can be tested without one: sets, statistics, verdicts, the
command line, and a whole run on a GPU that is only pretended."""

import importlib.util
import io
import json
import math
import os
import random
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("ATTUNE_BIN", ROOT / "build" / "attune")).resolve().parent
torch = pytest.importorskip("torch", reason="./x setup installs torch")


def load(name, folder="bench"):
    if name in sys.modules:  # one copy for all tests: exceptions are caught by their class
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, ROOT / folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


cuda = load("compare_cuda")
fakes = load("pretended_gpu", "tests/bench")
rows, told, report = (sys.modules[name] for name in ("cuda_rows", "cuda_report", "report"))


# --- sets -----------------------------------------------------------------------------------------


def test_sets_have_the_shapes_they_promise():
    count = {name: len(rows.rows_of(name)) for name in rows.SETS}
    assert count == {
        "d64-4k": 8,
        "single-512": 1,
        "fp32-long": 4,
        "fp32-d64": 6,
        "fp32-mixed": 6,
        "bf16-16k": 24,
        "decode": 4,
        "mask-additive": 2,
        "ladder": 6,
        "d96-d192": 12,
        "gqa": 5,
        "window-1k": 2,
        "lengths": 4,
    }
    everything = [row for name in rows.SETS for row in rows.rows_of(name)]
    assert len({row.name() for row in everything}) == len(everything)
    # The sets of prefill hold the work or the tokens of a row constant.
    for name, tokens in (("d64-4k", 4096), ("bf16-16k", 16384)):
        for row in rows.rows_of(name):
            batch, _, _, seq, _, _, _ = cuda.attune_ctypes.parse_shape(row.shape)
            assert batch * seq == tokens
    for row in rows.rows_of("ladder"):
        assert row.modes[0] == "wgmma" and not row.backends
    with pytest.raises(ValueError):
        rows.rows_of("nonsense")


def test_the_cost_of_a_row():
    row = rows.Row("custom", "2x8/2x1/1024x64", "bf16")
    assert rows.flops(row) == 4 * 2 * 8 * 1024 * 64
    assert rows.flops(rows.Row("custom", row.shape, "bf16", causal=True)) == rows.flops(row) / 2
    assert rows.key_bytes(row) == 2 * 2 * 1024 * 128 * 2
    assert rows.input_bytes(row) == rows.key_bytes(row) + 2 * 8 * 64 * 2
    assert rows.math_bytes(rows.Row("c", "1x1x131072x128", "f32")) > cuda.MATH_BYTES
    assert rows.math_bytes(rows.Row("c", "8x32x2048x64", "f16")) < cuda.MATH_BYTES


# --- statistics -----------------------------------------------------------------------------------


def test_the_interval_of_a_median():
    median, (low, high) = report.median_interval([3.0, 1.0, 2.0])
    assert (median, low, high) == (2.0, 1.0, 3.0), "few values: the whole range"
    assert report.median_interval([5.0]) == (5.0, [5.0, 5.0])
    median, (low, high) = report.median_interval(range(60))
    assert (median, low, high) == (29.5, 21, 38)


def test_the_interval_covers_95_percent():
    dice = random.Random(1)
    hits = 0
    for _ in range(2000):
        _, (low, high) = report.median_interval([dice.gauss(0, 1) for _ in range(25)])
        hits += low <= 0 <= high
    assert 0.94 < hits / 2000 < 0.99


def test_rounds_fit_the_time():
    plan = cuda.plan_rounds({"fast": 1e-5, "slow": 0.2, "middling": 0.02}, 3.0, 20)
    assert plan == {"fast": 10, "slow": cuda.FEWEST_ROUNDS, "middling": 12}
    assert cuda.plan_rounds({"fast": 1e-5}, 3.0, 6) == {"fast": 6}
    assert cuda.plan_rounds({"slow": 9.0}, 1.5, 2) == {"slow": 2}


def test_a_burst_is_a_number_of_calls():
    assert cuda.calls_of(9.0) == cuda.FEWEST_CALLS
    assert cuda.calls_of(1e-4) == pytest.approx(cuda.BURST_SECONDS / 2e-4, abs=1)


def test_every_row_of_prefill_has_a_line_beside_cudnn():
    for name in ("d64-4k", "single-512", "bf16-16k", "d96-d192"):
        for row in rows.rows_of(name):
            required, fa3 = rows.cudnn_requirement(name, row.shape, row.causal)
            assert 0.9 < required < 1.3
            assert fa3 is None or 0.7 < fa3 < 1.2
    assert rows.cudnn_requirement("custom", "1x1x17x64", False) is None
    assert rows.cudnn_requirement("bf16-16k", "8x16x2048x128", True)[0] == pytest.approx(
        0.97 * 1.20
    )
    assert rows.cudnn_requirement("bf16-16k", "1x8x16384x256", True)[0] == pytest.approx(700 / 597)


def test_ratios_are_of_common_rounds():
    ours, peer = cuda.Variant("auto", us=[1.0, 2.0, 100.0]), cuda.Variant("flash", us=[2.0, 4.0])
    assert cuda.ratio_to(ours, peer) == {"ratio": 2.0, "ci": [2.0, 2.0]}


# --- correctness ----------------------------------------------------------------------------------

CASES = [
    dict(shape="2x4x33x16", dtype="f32"),
    dict(shape="2x4x33x16", dtype="f32", causal=True),
    dict(shape="2x4/2x7/50x16/24", dtype="f32"),
    dict(shape="2x4x20x16", dtype="f32", mask=True),
    dict(shape="1x2x33x16", dtype="bf16"),
]


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setattr(cuda, "DEVICE", "cpu")


@pytest.mark.parametrize("fields", CASES, ids=lambda f: "-".join(map(str, f.values())))
def test_float64_rows_are_attention(fields, on_cpu):
    row = rows.Row("custom", **fields)
    inputs = cuda.make_inputs(row, torch.Generator().manual_seed(1))
    q, k, v, mask = inputs
    where = torch.tensor([0, q.shape[2] // 2, q.shape[2] - 1])
    got = cuda.float64_rows(inputs, row.causal, where)
    mask = None if mask is None else mask.double()
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.double(),
        k.double(),
        v.double(),
        attn_mask=mask,
        is_causal=row.causal,
        enable_gqa=q.shape[1] != k.shape[1],
    )[:, :, where]
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    assert cuda.compare(expected.to(q.dtype), got, row.dtype)[1] == ""
    assert cuda.compare(expected.to(q.dtype) + 0.1, got, row.dtype)[1] != ""
    assert cuda.compare(expected.to(q.dtype) * math.nan, got, row.dtype)[1] == "not finite"


def test_sampled_rows():
    dice = random.Random(1)
    assert cuda.sampled_rows(rows.Row("c", "1x1x5x8", "f32"), dice) == [0, 1, 2, 3, 4]
    long = cuda.sampled_rows(rows.Row("c", "1x1x131072x128", "f32"), dice)
    assert len(long) == 128 and long[0] == 0 and long[-1] == 131071
    assert len(cuda.sampled_rows(rows.Row("c", "64x64x16384x8", "f32"), dice)) == 4


@pytest.mark.parametrize("kind", cuda.FP32_INPUTS)
def test_fp32_inputs(kind, on_cpu):
    q, k, v = cuda.fp32_inputs(kind, "1x2x200x16", seed=1)
    for tensor in (q, k, v):
        assert tensor.dtype == torch.float32 and torch.isfinite(tensor).all()
    again = cuda.fp32_inputs(kind, "1x2x200x16", seed=1)
    assert all(torch.equal(a, b) for a, b in zip((q, k, v), again, strict=True))
    if kind == "v_blocks":
        assert (v[:, :, 64:128] == 0).all()
    if kind == "peaked":
        scores = q @ k.transpose(2, 3)
        assert (scores.argmax(-1) == torch.arange(200) * 7 % 200).float().mean() > 0.9


# --- verdicts -------------------------------------------------------------------------------------


def fake(name, shape, ratios, dtype="bf16", causal=False, ours=None, lse_ratios=None, **variants):
    """A result with these ratios of the peers' times to ours."""
    ours = {"us": 10.0, "tb_s": 4.5, "extra_mb": 100.0, **(ours or {})}
    ratios = {n: {"ratio": r, "ci": [0.99 * r, 1.01 * r]} for n, r in ratios.items()}
    window = 1024 if name == "window-1k" else 0
    lengths = name == "lengths"
    row = rows.Row(
        name, shape, dtype, causal, name == "mask-additive", window=window, lengths=lengths
    )
    peer, against = cuda.main_peer(row, ratios)
    return {
        "set": name,
        "shape": shape,
        "dtype": dtype,
        "causal": causal,
        "mask": row.mask,
        "window": row.window,
        "lengths": row.lengths,
        "ours": "auto",
        "peer": peer,
        "ratio": against and against["ratio"],
        "ci": against and against["ci"],
        "variants": {"auto": ours, **variants},
        "ratios": ratios,
        "lse_ratios": {n: {"ratio": r, "ci": [r, r]} for n, r in (lse_ratios or {}).items()},
        "input_mb": 192.0,
        "wrong": "",
    }


DECODE = "16x32/8x1/4096x128"
CHUNK = "1x32/8x512/8192x128"
WGMMA = {"kernel": "sm90.attn_fwd.f32.d64/wgmma.wg2"}
RUNGS = dict(
    naive={"us": 40.0}, tiled={"us": 30.0}, fused={"us": 20.0}, mma={"us": 10.0}, wgmma={"us": 5.0}
)
OLD_RUNGS = {name: RUNGS[name] for name in ("naive", "tiled", "fused", "mma")}


@pytest.mark.parametrize(
    "result, reached",
    [
        (fake("d64-4k", "8x32x512x64", {"flash": 1.06}), [True, True]),
        (fake("bf16-16k", "8x16x2048x128", {"flash": 0.99}), [True, False]),
        (fake("bf16-16k", "8x16x2048x128", {"flash": 0.97}), [False, False]),
        (fake("bf16-16k", "8x8x2048x256", {"flash": 0.5}), []),
        (fake("bf16-16k", "8x16x2048x128", {"cudnn": 1.07}), [False]),
        (fake("bf16-16k", "8x16x2048x128", {"cudnn": 1.08}), [True]),
        (fake("bf16-16k", "8x8x2048x256", {"cudnn": 1.07}), [False, False]),
        (fake("bf16-16k", "8x8x2048x256", {"cudnn": 1.08}), [True, False]),
        # 673 / 626 of cuDNN is FlashAttention-3's line, and 1.03 of it the bar from 2048 on.
        (fake("bf16-16k", "8x8x2048x256", {"cudnn": 1.10}), [True, False]),
        (fake("bf16-16k", "8x8x2048x256", {"cudnn": 1.11}), [True, True]),
        (fake("bf16-16k", "32x8x512x256", {"cudnn": 1.03}), [True]),
        # With LSE: the line is 628 / 590 of cuDNN's time without, and 0.97 of our own.
        (fake("bf16-16k", "8x16x2048x128", {"cudnn": 1.09, "lse": 1.02}), [True, True, True]),
        (fake("bf16-16k", "8x16x2048x128", {"cudnn": 1.09, "lse": 1.03}), [True, False, True]),
        (fake("bf16-16k", "8x16x2048x128", {"cudnn": 1.2, "lse": 1.04}), [True, True, False]),
        (fake("custom", "1x2x64x16", {"lse": 1.0}, lse_ratios={"fa3": 1.0}), [True, True]),
        (fake("custom", "1x2x64x16", {"lse": 1.0}, lse_ratios={"fa3": 0.99}), [False, True]),
        (fake("custom", "1x2x64x16", {"lse": 1.04}), [False]),
        (fake("single-512", "1x8x512x64", {"cudnn": 1.11}), [False]),
        (fake("d96-d192", "8x20x2048x96", {"cudnn": 1.01}), [True]),
        (fake("decode", DECODE, {"flash": 2.0, "cudnn": 0.98}), [True]),
        (fake("decode", DECODE, {"flash": 0.96, "cudnn": 1.5}), [False]),
        (fake("decode", "1x32/8x1/4096x128", {"flash": 0.99, "cudnn": 1.1}), [True, False]),
        (fake("decode", "1x32/8x1/4096x128", {"flash": 1.01}), [True, True]),
        (fake("decode", "64x32/8x1/8192x128", {"flash": 1.1}), [True, True]),
        (fake("decode", "64x32/8x1/8192x128", {"flash": 1.1}, ours={"tb_s": 4.2}), [True, False]),
        (fake("fp32-d64", "4x8x512x64", {"efficient": 2.1}), [True]),
        (fake("fp32-d64", "4x8x512x64", {"efficient": 1.9}), [False]),
        (fake("fp32-d64", "4x8x256x64", {"efficient": 1.0}), []),
        (fake("fp32-long", "1x1x131072x128", {"efficient": 2.5}), [True, True]),
        (fake("fp32-long", "1x1x131072x128", {"efficient": 1.5}), [False, True]),
        (
            fake("fp32-long", "1x1x131072x128", {"efficient": 2.5}, ours={"extra_mb": 400.0}),
            [True, False],
        ),
        (
            fake("fp32-long", "1x1x131072x128", {"efficient": 2.5}, fused={"extra_mb": 65.0}),
            [True, True, False],
        ),
        (fake("fp32-long", "1x1x4096x128", {"efficient": 1.0}), []),
        (fake("fp32-mixed", "2x16x2048x128", {"efficient": 4.3}, ours=WGMMA), [True]),
        (fake("fp32-mixed", "2x16x2048x128", {"efficient": 4.1}, ours=WGMMA), [False]),
        (fake("fp32-mixed", "2x16x2048x128", {"efficient": 4.1}), []),
        (fake("fp32-mixed", "4x8x1024x64", {"efficient": 4.6}, causal=True, ours=WGMMA), [True]),
        (fake("fp32-d64", "4x8x512x64", {"efficient": 3.2}, ours=WGMMA), [True, False]),
        (
            fake("fp32-long", "1x1x131072x128", {"efficient": 5.0}, ours={**WGMMA, "us": 41e3}),
            [True, True, False],
        ),
        (fake("mask-additive", "2x32x2048x64", {"unmasked": 1 / 1.29}), [True]),
        (fake("mask-additive", "2x32x2048x64", {"unmasked": 1 / 1.31}), [False]),
        (fake("gqa", "2x32/8x4096x128", {"unshared": 1.01}), [True]),
        (fake("gqa", "2x32/8x4096x128", {"unshared": 0.99}), [False]),
        (fake("gqa", CHUNK, {"cudnn": 1.06, "fa3": 1.05}), [True]),
        (fake("gqa", CHUNK, {"cudnn": 1.06, "fa3": 1.04}), [False]),
        (fake("gqa", CHUNK, {"cudnn": 1.04, "unshared": 1.2}), [False, True]),
        (fake("lengths", DECODE, {"common": 1 / 1.02}), [True]),
        (fake("lengths", DECODE, {"common": 1 / 1.04}), [False]),
        (
            fake("window-1k", "1x16x16384x128", {"whole": 6.5}, causal=True),
            [True],
        ),  # 8.26 is its share
        (fake("window-1k", "1x16x16384x128", {"whole": 6.2}, causal=True), [False]),
        (fake("mask-additive", "2x32x2048x64", {"cudnn": 1.49}), [False]),
        (fake("mask-additive", "2x32x2048x64", {"cudnn": 1.51}), [True]),
        (fake("ladder", "2x8x512x64", {}, **RUNGS), [True]),
        (fake("ladder", "2x8x512x64", {}, **OLD_RUNGS), [True]),
        (fake("ladder", "2x8x512x64", {}, **{**RUNGS, "tiled": {"us": 41.0}}), [False]),
        (fake("ladder", "2x8x512x64", {}, **{**RUNGS, "mma": {"refused": "old"}}), [False]),
        ({**fake("d64-4k", "8x32x512x64", {"flash": 1.06}), "wrong": "ours: NaN"}, []),
    ],
)
def test_bars(result, reached):
    assert [ok for _, _, ok in told.verdicts([result])] == reached


def test_bars_say_when_rows_are_missing():
    wanted = {"flash": 1.1}
    all_rows = [
        fake(row.set, row.shape, wanted, row.dtype, row.causal)
        for name in ("d64-4k", "bf16-16k")
        for row in rows.rows_of(name)
    ]
    for bar, _, reached in told.verdicts(all_rows):
        assert "[" not in bar and reached
    for bar, _, _ in told.verdicts(all_rows[1:]):
        assert bar.endswith("[not the bar itself: 23 of 24 rows]")


def fake_errors(kind, ours, efficient, norm=3e-7):
    return {
        "kind": kind,
        "shape": "4x8x1024x64",
        "causal": False,
        "ours": "auto",
        "errors": {"auto": ours, "efficient": efficient},
        "norms": {"auto": norm, "efficient": 4e-7},
    }


@pytest.mark.parametrize(
    "errors, reached",
    [
        ([fake_errors("normal", 5e-7, 6e-7)], [True, True, True]),
        ([fake_errors("normal", 2e-5, 3e-5)], [False, True, True]),
        ([fake_errors("normal", 5e-7, 6e-7), fake_errors("x8", 0.02, 9e-3)], [True, False, True]),
        (
            [fake_errors("normal", 5e-7, 6e-7), fake_errors("x8", math.inf, 1, math.inf)],
            [True, False, False],
        ),
        ([fake_errors("normal", 5e-7, 6e-7, norm=4.1e-7)], [True, True, False]),
    ],
)
def test_accuracy_bars(errors, reached):
    assert [ok for _, _, ok in told.accuracy_verdicts(errors)] == reached


def test_draws_of_an_input_are_judged_together(monkeypatch):
    draws = {7: ("x8", 1e-6, 2e-6, 3e-7), 8: ("x8", 5e-6, 1e-6, 4e-7)}
    monkeypatch.setattr(
        cuda, "one_draw", lambda *args: fake_errors(*draws[args[-1]]) | {"largest": args[-1]}
    )
    row = cuda.accuracy_row(None, "x8", "4x8x1024x64", False, ("auto",), seed=7, draws=2)
    assert row["errors"] == {"auto": 5e-6, "efficient": 2e-6} and row["largest"] == 8
    assert row["norms"]["auto"] == pytest.approx(math.sqrt((3e-7**2 + 4e-7**2) / 2))


# --- a whole run on a GPU that is only pretended --------------------------------------------------


FakeCall = fakes.FakeCall


@pytest.fixture
def pretended(on_cpu, monkeypatch, tmp_path):
    fakes.pretend(monkeypatch, cuda, tmp_path)
    return lambda *args: cuda.main(["--device", "cuda", "--build", str(tmp_path), *args])


def test_a_run(pretended, tmp_path, capsys):
    target, chart = tmp_path / "r.json", tmp_path / "r.png"
    shapes = ["--shape", "1x2x64x16", "--shape", "1x4/2x1/32x16"]
    files = ["--json", str(target), "--plot", str(chart)]
    assert pretended(*shapes, "--dtype", "f32,f16", "--rounds", "7", *files) == 0
    said = capsys.readouterr()
    assert said.out.startswith("| set | shape |") and "pretended GPU" in said.out
    result = json.loads(target.read_text())
    assert len(result["rows"]) == 8 and result["wrong"] == 0
    for row in result["rows"]:
        ours = row["variants"]["auto"]
        assert ours["samples"] == 7 and ours["extra_mb"] == 3.0
        assert ours["kernel"].endswith("pretended")
        assert row["ci"][0] <= row["ratio"] <= row["ci"][1]
        assert row["variants"]["cudnn"]["refused"] != "", "no cuDNN on a CPU"
        assert "cudnn" not in row["ratios"]
    assert chart.read_bytes().startswith(b"\x89PNG")


def fa3_of_torch(q, k, v, causal, window_size):
    """What flash_attn_interface.flash_attn_func is to the comparison."""
    swapped = [t.transpose(1, 2) for t in (q, k, v)]
    out = torch.nn.functional.scaled_dot_product_attention(
        *swapped, is_causal=causal, enable_gqa=q.shape[2] != k.shape[2]
    )
    return out.transpose(1, 2), None


SMALL = ["--shape", "1x2x64x16", "--shape", "1x4/2x32x16", "--rounds", "4", "--plot", "none"]


PICTURE = {  # the data that it was drawn from
    "hardware": "another",
    "matmul": {},
    "rows": [
        {"dtype": "bf16", "dim": 16, "shape": "1x2x64x16", "causal": causal, "tflops": {}}
        for causal in (False, True)
    ],
}


def test_with_lse_and_flash_attention_3(pretended, monkeypatch, tmp_path, capsys):
    package = types.SimpleNamespace(flash_attn_func=fa3_of_torch)
    monkeypatch.setitem(sys.modules, "flash_attn_interface", package)
    target = tmp_path / "r.json"
    assert pretended(*SMALL, "--lse", "--dtype", "bf16", "--json", str(target)) == 0
    said = capsys.readouterr()
    assert "| with LSE | shape |" in said.out and "fa3 us (ratio)" in said.out
    result = json.loads(target.read_text())
    assert len(result["rows"]) == 4
    for row in result["rows"]:
        assert row["variants"]["lse"]["tflops"] > 0 and row["variants"]["fa3"]["tflops"] > 0
        assert row["ratios"].keys() >= {"lse", "fa3"} and row["lse_ratios"].keys() == {"fa3"}
        assert row["variants"]["cudnn-lse"]["refused"] != "", "no cuDNN on a CPU"
        low, high = row["lse_ratios"]["fa3"]["ci"]
        assert low <= row["lse_ratios"]["fa3"]["ratio"] <= high
    assert result["date"] and result["command"].startswith("bench/compare_torch.py --device cuda")
    of_a_gpu = {"driver": "600.1", "cuda": "13.1", "cudnn": 92100}
    data = load("plot_readme").data_from(result | of_a_gpu, PICTURE)
    for row, drawn in zip(result["rows"][:2], data["rows"], strict=True):
        assert drawn["tflops"]["attune_lse"] == round(row["variants"]["lse"]["tflops"])
        assert drawn["tflops"]["cudnn"] is None
    assert pretended(*SMALL, "--lse", "--backends", "flash") == 0
    assert "fa3 " not in capsys.readouterr().out.splitlines()[0]


def test_cudnn_with_lse_is_its_operator(monkeypatch):
    """Its arguments are those of the operator in this PyTorch."""
    schema = torch.ops.aten._scaled_dot_product_cudnn_attention.default._schema
    names = [argument.name for argument in schema.arguments]
    assert names[4:7] == ["compute_log_sumexp", "dropout_p", "is_causal"]


@pytest.mark.parametrize("causal", [False, True])
def test_flash_attention_3_is_refused_where_it_means_something_else(causal, monkeypatch, pretended):
    monkeypatch.setattr(cuda, "fa3_function", lambda: fa3_of_torch)
    row = rows.Row("custom", "1x2x16/32x16", "bf16", causal)
    inputs = cuda.make_inputs(row, torch.Generator().manual_seed(1))
    variant = cuda.fa3_variant(inputs, causal)
    assert ("bottom right" in variant.refused) == causal == (variant.run is None)


def test_a_wrong_lse_fails(pretended, monkeypatch, capsys):
    monkeypatch.setattr(FakeCall, "spoil_lse", 0.5)
    assert pretended(*SMALL, "--lse") == 1
    said = capsys.readouterr()
    assert "lse: LSE:" in said.err and "FlashAttention-3 is left out" in said.err


def test_several_modes_and_one_that_refuses(pretended, capsys):
    args = ["--shape", "1x2x64x16", "--mode", "auto,tiled,fused", "--rounds", "4", "--plot", "none"]
    assert pretended(*args, "--json", "-") == 0
    row = json.loads(capsys.readouterr().out)["rows"][0]
    assert row["variants"]["tiled"] == {"refused": "tiled: not today"}
    assert row["ratios"].keys() >= {"fused", "math"}


@pytest.mark.parametrize("why", ["wrong values", "refusal"])
def test_what_is_wrong_fails(why, pretended, monkeypatch, capsys):
    monkeypatch.setattr(FakeCall, "spoil", 0.5 if why == "wrong values" else 0.0)
    mode = "auto" if why == "wrong values" else "tiled"
    args = ["--shape", "1x2x64x16", "--mode", mode, "--plot", "none"]
    assert pretended(*args) == 1
    said = capsys.readouterr()
    assert "WRONG custom 1x2x64x16" in said.err and "2 rows gave a wrong result" in said.err
    assert "| WRONG |" in said.out


def test_rows_beyond_the_budget_are_named(pretended, capsys):
    assert pretended("--set", "single-512", "--budget", "-1", "--plot", "none") == 0
    assert "not reached: single-512 1x8x512x64 f16" in capsys.readouterr().out


def test_a_tensor_of_lengths_is_timed_in_graphs(pretended, monkeypatch, capsys):
    small = [rows.Row("lengths", "2x4/2x1/32x16", "f16", backends=(), lengths=True)]
    monkeypatch.setattr(cuda, "rows_of", lambda name: small)
    assert pretended("--set", "lengths", "--rounds", "5", "--plot", "none") == 0
    said = capsys.readouterr().out
    assert "common us (ratio)" in said and "at most 1.03x the time of a common length" in said
    assert fakes.FakeGraph.replayed > 0
    assert [list(lengths) for lengths in FakeCall.lengths] == [[32, 32]]


def test_mask_ladder_and_accuracy(pretended, monkeypatch, capsys):
    small = [
        rows.Row("mask-additive", "1x2x64x16", "f16", mask=True),
        rows.Row("ladder", "1x1x512x16", "f32", modes=("mma", "fused", "naive"), backends=()),
    ]
    monkeypatch.setattr(cuda, "rows_of", lambda name: small)
    monkeypatch.setattr(cuda, "ACCURACY_SHAPES", ("1x1x130x16",))
    monkeypatch.setattr(cuda, "LONGER_SHAPES", ("1x1x200x16",))
    args = ["--set", "mask-additive", "--accuracy", "--rounds", "5", "--plot", "none"]
    assert pretended(*args) == 0
    out = capsys.readouterr().out
    assert (
        "unmasked us (ratio)" in out and "| v_blocks |" in out and "| v_mean | 1x1x200x16 |" in out
    )
    for bar in ("at most 1.3x the unmasked time", "naive < tiled < fused", "error <= 1e-5"):
        assert bar in out


def test_tables_show_refusals_as_a_dash():
    result = fake("d64-4k", "8x32x512x64", {"flash": 1.06}, flash={"us": 10.6})
    result["variants"]["auto"].update(tflops=500.0, max_err=1e-4)
    result["variants"]["cudnn"] = {"refused": "no"}
    out = io.StringIO()
    told.print_results([result], out)
    head, _, line = out.getvalue().splitlines()
    assert head.count("|") == line.count("|")
    assert "10.6 (1.06)" in line and "| - |" in line


# --- the command line -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args, complaint",
    [
        (["--shape", "1x8"], "'1x8' is not a shape"),
        (["--set", "d64-4k,nonsense"], "'nonsense' is not one of"),
        (["--set", ","], "--set: nothing is named"),
        (["--mode", "reference"], "'reference' is not one of"),
        (["--dtype", "f64"], "'f64' is not one of"),
        (["--rounds", "0"], "--rounds: 0 is not positive"),
        (["--build", "/nonexistent"], "run ./x build"),
    ],
)
def test_bad_usage_is_2(args, complaint, pretended, capsys):
    with pytest.raises(SystemExit) as stop:
        pretended(*args)
    assert stop.value.code == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("device", [["--device", "cuda"], ["--device=cuda"]])
def test_without_a_gpu(device, capsys):
    compare_torch = load("compare_torch")
    with pytest.raises(SystemExit) as stop:
        compare_torch.main([*device, "--build", str(BUILD)])
    assert stop.value.code == 2
    said = capsys.readouterr()
    assert "no CUDA device" in said.err and said.out == ""


def test_old_names_of_sets_still_work(pretended, monkeypatch, capsys):
    seen = {}
    monkeypatch.setattr(cuda, "deliver", lambda *_: 0)
    monkeypatch.setattr(cuda, "compare_all", lambda o: seen.update(vars(o)) or EMPTY)
    assert pretended("--set", "seed000,fa3,mask,window,dims,d64-4k") == 0
    assert seen["sets"] == ["d64-4k", "bf16-16k", "mask-additive", "window-1k", "d96-d192"]
    with pytest.raises(SystemExit):
        pretended("--help")
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in (*rows.SETS, *rows.GROUPS))
    assert not any(old in shown for old in ("seed0", "dims", "split"))
    assert "\n  fa3 " not in shown  # FlashAttention-3 is a peer too


def test_sets_and_aliases(pretended, monkeypatch):
    seen = {}
    monkeypatch.setattr(cuda, "deliver", lambda *_: 0)
    monkeypatch.setattr(cuda, "compare_all", lambda o: seen.update(vars(o)) or EMPTY)
    assert pretended("--set", "fp32,decode", "--set", "fp32-long", "--mode", "mma,fused,mma") == 0
    assert seen["sets"] == ["fp32-d64", "fp32-long", "fp32-mixed", "decode"]
    assert seen["modes"] == ("mma", "fused")
    assert pretended() == 0
    assert seen["sets"] == list(rows.SETS)


EMPTY = {"version": "", "torch": "", "device": ""}
