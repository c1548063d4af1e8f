"""The comparison: structs that match the header, wrong results noticed, a report of its form."""

import ctypes
import importlib.util
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("ATTUNE_BIN", ROOT / "build" / "attune")).resolve().parent
SCRIPT = ROOT / "bench" / "compare_torch.py"


def load(name):
    if name in sys.modules:  # one copy for all tests: exceptions are caught by their class
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, ROOT / "bench" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


attune_ctypes = load("attune_ctypes")
torch = pytest.importorskip("torch", reason="./x setup installs torch")
compare_torch = load("compare_torch")

STRUCTS = {
    "attune_tensor": attune_ctypes.Tensor,
    "attune_args": attune_ctypes.Args,
    "attune_backward_args": attune_ctypes.BackwardArgs,
}


def c_layout(tmp_path):
    """sizeof and offsetof of everything, said by the C compiler."""
    lines = []
    for name, struct in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for field, _ in struct._fields_:
            lines.append(
                f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), '
                f"sizeof((({name}*)0)->{field}));"
            )
    source = tmp_path / "layout.c"
    source.write_text(
        "#include <attune/attune.h>\n#include <stdio.h>\nint main(void) {\n"
        + "\n".join(lines)
        + "\nreturn 0;\n}\n"
    )
    program = tmp_path / "layout"
    compiler = next(c for c in ("cc", "gcc", "clang") if shutil.which(c))
    subprocess.run([compiler, "-I", ROOT / "include", source, "-o", program], check=True)
    output = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return {line.split()[0]: [int(n) for n in line.split()[1:]] for line in output.splitlines()}


def test_structs_match_the_header(tmp_path):
    layout = c_layout(tmp_path)
    for name, struct in STRUCTS.items():
        assert [ctypes.sizeof(struct)] == layout[name], name
        for field, _ in struct._fields_:
            place = getattr(struct, field)
            assert [place.offset, place.size] == layout[f"{name}.{field}"], f"{name}.{field}"


@pytest.fixture(scope="module")
def lib():
    return attune_ctypes.load(BUILD / "libattune.so")


def test_library_speaks_through_ctypes(lib):
    assert lib.version() == lib.info()["version"]
    q = torch.zeros(1, 2, 4, 8)
    args = lib.args(q, q, q, torch.empty_like(q))
    assert "cpu" in json.dumps(lib.explain(args))
    with pytest.raises(attune_ctypes.Error, match="300"):
        wide = torch.zeros(1, 2, 4, 300)
        lib.forward(lib.args(wide, wide, wide, torch.empty_like(wide)))
    with pytest.raises(attune_ctypes.Error, match="no field"):
        lib.args(q, q, q, q, casual=1)
    with pytest.raises(attune_ctypes.Error, match="int64"):
        lib.args(q.long(), q, q, q)


SIDES = [
    dict(dtype="f32", shape="1x2x33x16"),
    dict(dtype="f32", shape="1x2x33x16", causal=True),
    dict(dtype="f32", shape="2x4/2x17x8/24"),
    dict(dtype="f32", shape="1x2x33x16", mask=True),
    dict(dtype="f16", shape="1x2x1/70x16"),
    dict(dtype="bf16", shape="1x2x33x16", causal=True),
]


@pytest.mark.parametrize("fields", SIDES, ids=lambda f: "-".join(map(str, f.values())))
@pytest.mark.parametrize("by_torch", [False, True], ids=["ours", "torch"])
def test_right_results_pass(lib, fields, by_torch):
    side = compare_torch.Side(**fields, torch=by_torch)
    inputs = compare_torch.make_inputs(side, seed=1)
    run = compare_torch.make_call(side, inputs, lib, 2, compare_torch.poisoned)
    error, wrong = compare_torch.check_side(run, side, compare_torch.expect(side, inputs))
    assert wrong == "" and error < 0.05


@pytest.mark.parametrize("fields", SIDES, ids=lambda f: "-".join(map(str, f.values())))
def test_wrong_results_are_noticed(lib, fields):
    side = compare_torch.Side(**fields)
    inputs = compare_torch.make_inputs(side, seed=1)
    run = compare_torch.make_call(side, inputs, lib, threads=1)
    good = run().clone()
    expected = compare_torch.expect(side, inputs)

    def judge(spoil):
        def spoiled():
            out = good.clone()
            spoil(out)
            return out

        return compare_torch.check_side(spoiled, side, expected)[1]

    def one_element(out):
        out[0, 1, -1, 3] += 0.05

    def last_row_forgotten(out):
        out[..., -1, :] = 0

    def not_a_number(out):
        out[0, 0, 0, 0] = math.nan

    def scaled(out):
        out *= 1.02

    for spoil in (one_element, last_row_forgotten, not_a_number, scaled):
        assert judge(spoil) != "", spoil.__name__
    if side.causal:
        full = compare_torch.Side(side.dtype, side.shape, torch=True)
        assert judge(lambda out: out.copy_(compare_torch.make_call(full, inputs, lib, 1)())) != ""


def test_long_sequences_are_checked_at_sampled_rows(lib):
    side = compare_torch.Side("f32", "1x1x300x8")
    inputs = compare_torch.make_inputs(side, seed=1)
    run = compare_torch.make_call(side, inputs, lib, threads=1)
    expected = compare_torch.expect(side, inputs, most_rows=32)
    assert len(expected[0]) == 32
    assert compare_torch.check_side(run, side, expected)[1] == ""
    spoiled = run().clone()
    spoiled[..., -1, :] += 1
    assert compare_torch.check_side(lambda: spoiled, side, expected)[1] != ""


def test_the_interval_covers_the_ratio():
    pairs = [(1.0, 1.5 + 0.01 * (i % 5)) for i in range(20)]
    ratio, (low, high) = compare_torch.ratio_interval(pairs)
    assert low <= ratio <= high
    assert ratio == pytest.approx(1.52) and 1.5 <= low and high <= 1.54
    assert compare_torch.geometric_mean([2.0, 8.0]) == pytest.approx(4.0)


def fake(name, ratio, **more):
    return {
        "set": name,
        "shape": "1x8x1024x64",
        "dtype": "f32",
        "causal": False,
        "peer": "torch",
        "ratio": ratio,
        "ci": [ratio * 0.99, ratio * 1.01],
        "pct_peak": 50.0,
        "extra_mb": 3.0,
        **more,
    }


@pytest.mark.parametrize(
    "row, reached",
    [
        (fake("core", 1.4), [True, True]),
        (fake("core", 1.2), [True, False]),
        (fake("core", 1.2, pct_peak=71.0), [True, True]),
        (fake("core", 0.96), [False, False]),
        (fake("core", 0.975), [True, False]),
        (fake("features", 1.01), [True]),
        (fake("features", 0.99), [False]),
        (fake("half", 1 / 1.29), [True]),
        (fake("half", 1 / 1.31), [False]),
        (fake("decode", 1.01), [True]),
        (fake("decode", 0.9), [False]),
        (fake("mask", 1 / 1.24), [True]),
        (fake("mask", 1 / 1.26), [False]),
        (fake("memory", 1.0), [True]),
        (fake("memory", 1.0, extra_mb=64.5), [False]),
    ],
)
def test_bars(row, reached):
    assert [ok for _, _, ok in compare_torch.verdicts([row])] == reached


def test_features_are_compared_with_torch(monkeypatch, capsys):
    rows = compare_torch.rows_of("features", quick=True)
    assert all(row.peer.torch and row.peer.mask == row.ours.mask for row in rows)
    assert {row.ours.dtype for row in rows} == {"f32", "f16", "bf16"}
    assert any(row.ours.mask for row in rows)
    assert {dtype for row in rows if "/" in row.ours.shape for dtype in [row.ours.dtype]} == {
        "f32",
        "bf16",
    }
    monkeypatch.setattr(compare_torch, "torch_has_bf16", lambda: False)
    options = compare_torch.argparse.Namespace(shapes=[], sets=["features"], quick=True)
    left = compare_torch.choose_rows(options)
    assert left == [row for row in rows if row.ours.dtype != "bf16"]
    assert "4 rows left out: PyTorch's bf16 attention crashes" in capsys.readouterr().err


# --- programs that find their Python --------------------------------------------------------------


def run_without(package, root):
    """A program of root/bench that needs the package, by a Python without it."""
    (root / "bench").mkdir()
    shutil.copy(ROOT / "bench" / "find_python.py", root / "bench")
    program = root / "bench" / "program.py"
    program.write_text(f"import find_python\nfind_python.need('json', '{package}')\n")
    return subprocess.run(
        [sys.executable, program, "--set", "a b"], capture_output=True, text=True, timeout=60
    )


def test_a_program_starts_again_with_the_python_of_the_repository(tmp_path):
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    python.chmod(0o755)
    result = run_without("no_such_package", tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{tmp_path}/bench/program.py|--set|a b|"
    assert "has no no_such_package: using .venv/bin/python" in result.stderr


def test_without_that_python_it_says_how_to_get_one(tmp_path):
    result = run_without("no_such_package", tmp_path)
    assert result.returncode == 1
    assert "has no no_such_package: run ./x setup" in result.stderr


DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PRINTED = sorted(
    {name for d in DOCUMENTS for name in re.findall(r"bench/(\w+\.py)", d.read_text())}
)


def test_the_documents_name_programs():
    assert {"compare_torch.py", "plot_evolve.py", "small_calls.py"} < set(PRINTED)


@pytest.mark.parametrize("name", PRINTED)
def test_programs_can_be_run_as_they_are_printed(name, tmp_path):
    """By a Python without packages, in a tree without .venv: they do, or say what is missing."""
    assert os.access(ROOT / "bench" / name, os.X_OK)
    assert (ROOT / "bench" / name).read_text().startswith("#!/usr/bin/env python3\n")
    shutil.copytree(ROOT / "bench", tmp_path / "bench")
    result = subprocess.run(
        [sys.executable, "-S", "-E", tmp_path / "bench" / name, "--help"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if result.returncode != 0:
        assert "run ./x setup" in result.stderr and "Traceback" not in result.stderr, result.stderr


def test_every_call_allocates_its_output(lib):
    """As PyTorch does: the results of two calls are both there."""
    side = compare_torch.Side("f32", "1x2x33x16")
    run = compare_torch.make_call(side, compare_torch.make_inputs(side, seed=1), lib, threads=1)
    first, second = run(), run()
    assert first.data_ptr() != second.data_ptr()
    assert torch.equal(first, second)


def bars_of(name, quick):
    rows = compare_torch.rows_of(name, quick)
    results = [
        fake(name, 1.4, shape=row.ours.shape, dtype=row.ours.dtype, causal=row.ours.causal)
        for row in rows
    ]
    return [bar for bar, _, _ in compare_torch.verdicts(results)]


@pytest.mark.parametrize(
    "name, quick, whole",
    [
        ("core", "S=512,1024 f32", "S=512,1024,2048,4096 f32"),
        ("features", "S=512 f32,f16,bf16", "S=1024,2048 f32,f16,bf16"),
        ("half", "S=512 f16,bf16", "S=1024,2048 f16,bf16"),
        ("decode", "S=16384 f32", "S=16384 f32,f16,bf16"),
        ("mask", "S=512 f32", "S=1024,2048 f32"),
        ("memory", "S=4096 f32", "S=16384 f32"),
    ],
)
def test_bars_name_what_was_measured(name, quick, whole):
    for bar in bars_of(name, quick=True):
        assert bar.startswith(f"{name}, {quick}: ")
        assert bar.endswith(f"[not the bar itself, which is {whole}]")
    for bar in bars_of(name, quick=False):
        assert bar.startswith(f"{name}, {whole}: ") and "[" not in bar


def test_json_has_no_nan():
    text = load("report").to_json({"rows": [{"max_err": math.inf, "ci": (math.nan, 1.5)}], "n": 2})
    assert json.loads(text) == {"rows": [{"max_err": None, "ci": [None, 1.5]}], "n": 2}
    assert "NaN" not in text and "Infinity" not in text


def compare(*args):
    return subprocess.run(
        [sys.executable, SCRIPT, "--build", BUILD, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_small_run(tmp_path):
    target, chart = tmp_path / "r.json", tmp_path / "r.png"
    result = compare(
        "--shape",
        "1x2x64x16",
        "--shape",
        "1x4/2x32x16",
        "--rounds",
        5,
        "--json",
        target,
        "--plot",
        chart,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("| set | shape |")
    report = json.loads(target.read_text())
    assert len(report["rows"]) == 4
    for row in report["rows"]:
        keys = (
            "set shape dtype causal peer ours_us peer_us ratio ci pct_peak extra_mb max_err "
            "peer_err"
        ).split()
        assert list(row)[: len(keys)] == keys
        assert row["ci"][0] <= row["ratio"] <= row["ci"][1]
        assert row["max_err"] < 1e-5 and row["rounds"] == 5
        assert 0 < row["pct_peak"] < 150
    ratios = [row["ratio"] for row in report["rows"]]
    assert report["min"] == min(ratios)
    assert report["geomean"] == pytest.approx(compare_torch.geometric_mean(ratios))
    assert chart.read_bytes().startswith(b"\x89PNG")
    assert sorted(os.listdir(tmp_path)) == ["r.json", "r.png"]


@pytest.mark.parametrize("name", ["f16", "fp16", "float16"])
def test_options_have_the_spellings_of_the_tool(name, lib):
    arguments = ["--build", str(BUILD), "--shape", "1x1x16x8", "--json", "--dtype", name]
    options = compare_torch.parse_options(arguments)
    assert options.dtype == "f16"
    assert options.json == "-"


@pytest.mark.parametrize("plot", [[], ["--plot", "none"]], ids=["default", "none"])
def test_json_is_the_only_stdout(plot, tmp_path):
    """Also with the chart, which goes beside the build unless it is not wanted."""
    for name in ("attune", "libattune.so"):
        (tmp_path / name).symlink_to(BUILD / name)
    small = ["--shape", "1x1x16x8", "--rounds", 1]
    result = compare("--build", tmp_path, *small, "--json", "-", *plot)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["wrong"] == 0
    chart = tmp_path / "compare_torch.png"
    assert chart.exists() == (f"chart: {chart}" in result.stderr) == (plot == [])


@pytest.mark.parametrize(
    "args, complaint",
    [
        (["--shape", "1x8"], "'1x8' is not a shape"),
        (["--set", "nonsense"], "nonsense"),
        (["--threads", "0"], "--threads: 0 is not positive"),
        (["--threads", "1025"], "--threads: 1025 is above 1024"),
        (["--build", "/nonexistent"], "run ./x build"),
        (["--device"], "expected one argument"),
        (["--device", "tpu"], "tpu"),
    ],
)
def test_bad_usage_is_2(args, complaint, capsys):
    with pytest.raises(SystemExit) as stop:
        compare_torch.main(args)
    assert stop.value.code == 2
    said = capsys.readouterr()
    assert complaint in said.err
    assert said.out == ""


def test_memory_of_a_call_is_seen_in_a_process_of_its_own(lib):
    """Also when the process that asks has a higher peak of its own (torch alone does)."""
    side = compare_torch.Side("f32", "1x1x2048x16", mask=True)
    extra = compare_torch.measure_extra_mb(side, BUILD / "libattune.so", threads=1)
    assert 0 <= extra < 12, "the mask alone is 16 MB"


@pytest.mark.full
def test_quick_run_of_all_sets():
    result = compare("--quick", "--json", "-", "--plot", "none")
    assert result.returncode == 0, result.stderr
    assert {row["set"] for row in json.loads(result.stdout)["rows"]} == set(compare_torch.SETS)


def test_backward_pass_is_compared(tmp_path):
    report = tmp_path / "backward.json"
    command = [sys.executable, SCRIPT, "--pass", "backward", "--shape", "1x2/1x40x16"]
    command += ["--threads", "1", "--rounds", "1", "--build", BUILD, "--json", report]
    subprocess.run([*command, "--plot", "none"], check=True, capture_output=True)
    rows = json.loads(report.read_text())["rows"]
    assert [(r["pass"], r["causal"]) for r in rows] == [
        ("backward", False),
        ("forward+backward", False),
        ("backward", True),
        ("forward+backward", True),
    ]
    assert all(r["wrong"] == "" and r["ratio"] > 0 and r["max_err"] < 1e-5 for r in rows)
