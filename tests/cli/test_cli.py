"""The tool as a user meets it: exit codes, streams, Ctrl-C, files that cannot be written."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ATTUNE = Path(os.environ.get("ATTUNE_BIN", ROOT / "build" / "attune")).resolve()
TINY_BENCH = ["bench", "--shape", "1x2x32x16", "--repeats", "3", "--min-time", "0.001"]


def attune(*args, **kwargs):
    return subprocess.run(
        [ATTUNE, *map(str, args)], capture_output=True, text=True, timeout=120, **kwargs
    )


def a_case_name():
    """The name of one case, to keep the runs of `check` here short."""
    result = attune("check", "--seed", 1, "--json", "-")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)["worst"][0]["name"]


@pytest.fixture(scope="module")
def one_case():
    return ["check", "--seed", "1", "--filter", a_case_name()]


COMMANDS = (
    [[], ["info"], ["check"], ["bench"], ["peak"], ["evolve"], ["judge"], ["report"]]
    + [["cache", *rest] for rest in ([], ["list"], ["warm"], ["clear"])]
    + [["tuned", *rest] for rest in ([], ["list"], ["show"], ["remove"])]
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_teaches(command):
    result = attune(*command, "--help")
    assert result.returncode == 0
    assert "Examples:\n  attune " in result.stdout
    assert result.stderr == ""
    # Readable in a terminal of 105 columns; no word that only this project understands.
    assert max(map(len, result.stdout.splitlines())) <= 105
    assert not re.search(r"held against|dice|sitting|fooled|goes? before", result.stdout)


def test_examples_of_the_help_are_accepted():
    """Their options parse, so that nobody copies a typing error."""
    for command in ("info", "check", "bench", "peak", "judge"):
        text = attune(command, "--help").stdout
        lines = re.findall(r"^  attune (.*?)(?: \|.*|  +.*)?$", text.split("Examples:")[1], re.M)
        assert lines
        for line in lines:
            # A last option that no command has: the parser complains of this one alone.
            result = attune(*line.split(), "--no-such-option")
            assert "--no-such-option" in result.stderr, f"{line}: {result.stderr}"


def test_without_a_word_there_is_help():
    result = attune()
    assert result.returncode == 0
    assert result.stdout == attune("--help").stdout
    assert result.stderr == ""


@pytest.mark.parametrize(
    "command",
    [["info"], ["peak", "--seconds", "0.01"], ["bench", "--list"], ["tuned", "list"]]
    + [["cache", "list"], TINY_BENCH],
    ids=" ".join,
)
def test_json_alone_is_stdout(command, tmp_path):
    env = os.environ | {"ATTUNE_CACHE_DIR": str(tmp_path)}
    result = attune(*command, "--json", env=env)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)
    result = attune(command[0], "--json", *command[1:], env=env) if len(command) > 2 else result
    assert json.loads(result.stdout)


def test_every_json_takes_no_file():
    """Also those of commands that cannot be run here."""
    for command in (["check"], ["report"], ["evolve"], ["cache", "warm"], ["tuned", "show"]):
        result = attune(*command, "--json", "--no-such-option")
        assert "--no-such-option is not an option" in result.stderr, command


@pytest.mark.parametrize("name", ["f32", "fp32", "float32"])
def test_dtypes_have_their_usual_spellings(name):
    half = name.replace("32", "16")
    rows = rows_of("--shape", "1x1x8x8", "--dtype", f"{name},{half},bfloat16", "--mask", half)
    assert [row["dtype"] for row in rows] == ["f32", "f16", "bf16"]
    assert {row["mask"] for row in rows} == {"f16"}


def test_a_seed_has_64_bits():
    seed = 2**64 - 1
    result = attune("check", "--seed", seed, "--filter", "causal", "--json")
    assert json.loads(result.stdout)["seed"] == seed
    assert f"--seed {seed}" in result.stderr
    report = json.loads(attune(*TINY_BENCH, "--seed", seed, "--json").stdout)
    assert report["seed"] == seed


def test_version():
    assert re.fullmatch(r"attune \d+\.\d+\.\d+\n", attune("--version").stdout)


@pytest.mark.parametrize(
    "args, complaint",
    [
        (["nonsense"], "'nonsense' is not a command\n"),
        (["evlove"], "'evlove' is not a command; did you mean evolve?"),
        (["cache", "lsit"], "'lsit' is not a command; did you mean list?"),
        (["bench", "--shpae", "1x1x8x8"], "--shpae is not an option of attune bench; did you mean"),
        (["tuned", "list", "--jsn=x"], "of attune tuned list; did you mean --json?"),
        (["worke"], "'worke' is not a command\n"),  # what the help does not name stays unnamed
        (["bench", "more"], "more"),
        (["check", "--seed", "-1"], "--seed: '-1' is not a whole number from 0 to 184467440737"),
        (["bench", "--seed", "18446744073709551616"], "--seed: '18446744073709551616' is not"),
        (["check", "--suite", "huge"], "huge"),
        (["check", "--isa", "Z80"], "'Z80' does not run here; this machine has "),
        (["check", "--filter", "no such case"], "has 'no such case' in its name"),
        (["check", "--threads", "-1"], "--threads"),
        (["check", "--seed", str(2**64)], "--seed: '18446744073709551616' is not a whole number"),
        (["bench", "--seed", "-1"], "--seed: '-1' is not a whole number from 0 to"),
        (["check", "--device", "tpu"], "tpu"),
        (["check", "--device", "cuda", "--isa", "all"], "--isa does not go with --device cuda"),
        (["check", "--device", "cuda", "--threads", "2"], "--threads (--jobs does)"),
        (["check", "--mode", "mma"], "--mode mma does not go with --device cpu"),
        (["check", "--mode", "all"], "--mode all does not go with --device cpu"),
        (["check", "--jobs", "2"], "--jobs (--threads does)"),
        (["check", "--user-code"], "--user-code does not go with --device cpu"),
        (["bench", "--isa", "Z80"], "'Z80' does not run here"),
        (["bench", "--seq", "512:1024"], "--seq: '512:1024' is not a range"),
        (["bench", "--seq", "0"], "--seq: 0 in '0'"),
        (["bench", "--shape", "1x8x512"], "--shape: '1x8x512' has 3 parts"),
        (["bench", "--shape", "1x8x64x16", "--seq", "64"], "--shape says all sizes"),
        (["bench", "--dim", "300"], "300"),
        (["bench", "--heads", "8", "--kv-heads", "3"], "multiple"),
        (["bench", "--causal", "1", "--seq", "4", "--seq-k", "8"], "--align"),
        (["bench", "--dtype", "f64"], "--dtype: 'f64' is not one of f32, f16, bf16"),
        (["bench", "--config", "fast"], "--config: 'fast' is not a config; one looks like mr"),
        (["bench", "--config", "mr5.nv4.exp5.bq192.bk128.sp0.dot2.pv0.rs8"], "register tile"),
        (["bench", "--mode", "tiled"], "--mode: 'tiled' is not one of auto, reference"),
        (["bench", "--set", "seed001"], "--set: 'seed001' is not one of d64-4k, single-512"),
        (["bench", "--set", "bf16-16k", "--seq", "64"], "--set says all shapes"),
        (["bench", "--set", "bf16-16k", "--shape", "1x1x1x1"], "--set says all shapes"),
        (["bench", "--device", "cuda", "--mode", "reference"], "'reference' is not one of auto"),
        (["bench", "--device", "cuda", "--isa", "all"], "--isa does not go with --device cuda"),
        (["bench", "--device", "cuda", "--threads", "2"], "--threads does not go with"),
        (["bench", "--device", "cuda", "--config", "mr6"], "--config: 'mr6' is not a config"),
        (["bench", "--repeats", "0"], "--repeats"),
        (["bench", "--min-time", "nan"], "--min-time: nan is not in 0..60"),
        (["bench", "--min-time", "inf"], "--min-time: inf is not in 0..60"),
        (["bench", "--threads", "0,1025"], "--threads: 1025 is above 1024"),
        (["bench", "--threads", "0,"], "--threads: '0,' has an empty part"),
        (["check", "--threads", "1025"], "--threads"),
        (["peak", "--threads", "1025"], "--threads"),
        (["peak", "--seconds", "nan"], "--seconds: nan is not in 0.001..60"),
        (["bench", "--json", "-", "--csv", "-"], "cannot both go to stdout"),
        (["peak", "--seconds", "0"], "--seconds"),
        (["peak", "--isa", "all"], "one instruction set"),
    ],
)
def test_bad_usage_is_2_and_explained_on_stderr(args, complaint):
    result = attune(*args)
    assert result.returncode == 2, result.stderr
    assert complaint in result.stderr
    assert result.stdout == ""


def test_info_says_why_for_every_backend():
    facts = json.loads(attune("info", "--json").stdout)
    assert facts == json.loads(attune("info", "--json", "-").stdout)
    text = attune("info").stdout
    assert facts["version"] in text
    assert "cpu" in text
    assert "AVX" in text or "SSE" in text or "NEON" in text


def test_info_says_what_holds_a_candidate():
    sandbox = json.loads(attune("info", "--json").stdout)["sandbox"]
    assert list(sandbox) == ["seccomp", "user_namespaces", "landlock", "missing"]
    complete = sandbox["seccomp"] and sandbox["user_namespaces"] and sandbox["landlock"] >= 4
    assert complete == (sandbox["missing"] == "")
    assert ("Landlock" in sandbox["missing"]) == (sandbox["landlock"] < 4)
    assert f"landlock: {sandbox['landlock']}" in attune("info").stdout


def test_check_json_is_the_only_stdout():
    result = attune("check", "--json", "-")
    report = json.loads(result.stdout)
    assert result.returncode == 0, result.stderr
    assert report["failures"] == 0 and report["failed"] == []
    assert report["cases"] >= 100
    assert report["interrupted"] is False
    assert f"--seed {report['seed']}" in result.stderr
    for entry in report["worst"]:
        assert {"name", "error", "limit", "ratio", "lse_error"} <= entry.keys()
        assert entry["error"] <= entry["limit"]


def test_check_repeats_with_its_seed(one_case, tmp_path):
    first, second = (json.loads(attune(*one_case, "--json", "-").stdout) for _ in range(2))
    assert first["worst"] == second["worst"]
    assert first["seed"] == 1


def test_check_prints_a_table_and_writes_the_file(one_case, tmp_path):
    target = tmp_path / "result.json"
    result = attune(*one_case, "--json", target)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("| cases with")
    assert json.loads(target.read_text())["cases"] >= 1
    assert os.listdir(tmp_path) == ["result.json"], "a temporary file was left behind"


def test_check_runs_every_isa(one_case):
    report = json.loads(attune(*one_case, "--isa", "all", "--json", "-").stdout)
    assert report["cases"] % len(report["isa"]) == 0
    assert {entry["isa"] for entry in report["worst"]} <= set(report["isa"])


def test_bench_table_json_csv(tmp_path):
    target, sheet = tmp_path / "b.json", tmp_path / "b.csv"
    result = attune(
        *TINY_BENCH,
        "--causal",
        "0,1",
        "--dtype",
        "f32,bf16",
        "--mask",
        "none,bool,f32",
        "--json",
        target,
        "--csv",
        sheet,
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == 2 + 12 and all(line.startswith("|") for line in lines)
    report = json.loads(target.read_text())
    assert len(report["rows"]) == 12
    for row in report["rows"]:
        assert row["p10_us"] <= row["median_us"] <= row["p90_us"]
        assert len(row["samples_us"]) == 3
        work = 4 * 2 * 32 * 32 * 16 / (2 if row["causal"] else 1)
        assert row["gflops"] == pytest.approx(work / row["median_us"] / 1e3)
        assert 0 < row["pct_peak"] < 150
        assert 0 <= row["extra_mb"] < 64
        assert row["kernel"].startswith("cpu.")
    assert len(sheet.read_text().splitlines()) == 13


def test_bench_sees_memory():
    """A copy of the mask or a matrix of scores would show up."""
    result = attune(
        "bench", "--shape", "1x1x2048x16", "--mask", "f32", "--repeats", 1, "--json", "-"
    )
    assert json.loads(result.stdout)["rows"][0]["extra_mb"] < 12, "the mask alone is 16 MB"


def test_bench_counts_allowed_pairs_when_lengths_differ():
    result = attune(
        "bench",
        "--shape",
        "1x1x1/64x8",
        "--causal",
        1,
        "--align",
        "bottom-right",
        "--repeats",
        1,
        "--min-time",
        0,
        "--json",
        "-",
    )
    row = json.loads(result.stdout)["rows"][0]
    assert row["gflops"] * row["median_us"] * 1e3 == pytest.approx(4 * 64 * 8)


def test_bench_with_lse():
    args = ["--shape", "1x2x32x16", "--mode", "auto,naive,reference", "--repeats", "1"]
    for lse in ([], ["--lse"]):
        result = attune("bench", *args, "--min-time", "0", "--json", "-", *lse)
        assert result.returncode == 0, result.stderr
        rows = json.loads(result.stdout)["rows"]
        assert [row["lse"] for row in rows] == [bool(lse)] * 3
        assert all((".lse/" in row["kernel"]) == bool(lse) for row in rows)
    listed = attune("bench", "--set", "single-512", "--lse", "--list", "--json", "-")
    assert [row["lse"] for row in json.loads(listed.stdout)["rows"]] == [True]


def test_peak():
    report = json.loads(attune("peak", "--seconds", 0.05, "--threads", 1, "--json", "-").stdout)
    assert report["peak_gflops"] > 0.1 and report["threads"] == 1


def test_peak_of_more_threads_than_processors_is_that_of_the_processors():
    usable = len(os.sched_getaffinity(0))
    result = attune("peak", "--seconds", 0.05, "--threads", usable + 1, "--json", "-")
    assert json.loads(result.stdout)["threads"] == usable
    assert f"{usable} threads measured, not {usable + 1}" in result.stderr

    result = attune(*TINY_BENCH, "--threads", f"{usable + 1},{4 * usable}", "--json", "-")
    report = json.loads(result.stdout)
    assert [row["threads"] for row in report["rows"]] == [usable + 1, 4 * usable]
    assert [peak["threads"] for peak in report["peaks"]] == [usable]


def test_bench_threads_0_is_all_usable_ones():
    report = json.loads(attune(*TINY_BENCH, "--threads", "0,1", "--json", "-").stdout)
    usable = len(os.sched_getaffinity(0))
    assert [row["threads"] for row in report["rows"]] == [usable, 1]


@pytest.mark.parametrize("shape", ["1x64x4000000x256", "1000x1x10000000x256"])
def test_bench_refuses_what_does_not_fit_memory(shape, tmp_path):
    result = attune("bench", "--shape", shape, "--json", tmp_path / "b.json")
    assert result.returncode == 1
    found = re.search(
        rf"{shape}\) need (\d+) MB of memory, but (\d+) MB are available",
        result.stderr,
    )
    batch, heads, seq, dim = map(int, shape.split("x"))
    assert int(found[1]) == 5 * 4 * batch * heads * seq * dim >> 20  # out counts twice: the fork's
    assert 0 < int(found[2]) < int(found[1])
    assert os.listdir(tmp_path) == []


def test_bench_sizes_do_not_wrap_around():
    result = attune("bench", "--shape", "1000000000x1000000000x1000000000x256")
    assert result.returncode in (1, 2)
    assert "1000000000" in result.stderr


@pytest.mark.parametrize("closed", [[0], [1], [2], [0, 1, 2]])
def test_closed_streams_do_not_leak_into_files(closed, tmp_path):
    target = tmp_path / "i.json"

    def close():
        for fd in closed:
            os.close(fd)

    result = subprocess.run([ATTUNE, "info", "--json", target], preexec_fn=close, timeout=60)
    assert result.returncode == 0
    assert "version" in json.loads(target.read_text())


@pytest.mark.parametrize(
    "target, reason",
    [
        ("/nonexistent/x.json", "No such file or directory"),
        ("/dev/full", "No space left on device"),
        ("/", "Is a directory"),
    ],
)
def test_unwritable_file_is_1_and_explained(target, reason):
    for command in (TINY_BENCH, ["info"]):
        result = attune(*command, "--json", target)
        assert result.returncode == 1
        assert f"--json: cannot write {target}: {reason}" in result.stderr


def test_full_disk_on_stdout_is_1():
    with open("/dev/full", "w") as full:
        result = subprocess.run([ATTUNE, "info"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert result.returncode == 1
    assert "cannot write to stdout: No space left on device" in result.stderr


def test_closed_pipe_is_quiet():
    read_end, write_end = os.pipe()
    os.close(read_end)
    result = subprocess.run([ATTUNE, "info"], stdout=write_end, stderr=subprocess.PIPE, text=True)
    os.close(write_end)
    assert result.returncode == 0
    assert result.stderr == ""


def rows_of(*args):
    result = attune("bench", "--list", "--json", "-", *args)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return json.loads(result.stdout)["rows"]


SETS = {
    "d64-4k": {
        f"{b}x32x{s}x64 f16 {c}"
        for b, s in [(8, 512), (4, 1024), (2, 2048), (1, 4096)]
        for c in "01"
    },
    "single-512": {"1x8x512x64 f16 0"},
    "fp32-long": {f"1x1x{s}x128 f32 0" for s in (4096, 16384, 65536, 131072)},
    "fp32-d64": {f"4x8x{s}x64 f32 0" for s in (128, 256, 512, 1024, 2048, 4096)},
    "bf16-16k": {
        f"{b}x{h}x{s}x{d} bf16 {c}"
        for d, h in [(64, 32), (128, 16), (256, 8)]
        for b, s in [(32, 512), (8, 2048), (2, 8192), (1, 16384)]
        for c in "01"
    },
    "decode": {
        f"{b}x32/8x1/{s}x128 bf16 0" for b, s in [(1, 4096), (1, 131072), (16, 4096), (64, 8192)]
    },
    "gqa": {f"2x32/8x4096x128 bf16 {c}" for c in "01"}
    | {f"4x32/4x2048x64 f16 {c}" for c in "01"}
    | {"1x32/8x512/8192x128 bf16 0"},
    "fp32-mixed": {f"4x8x{s}x64 f32 1" for s in (512, 1024, 2048, 4096)}
    | {f"2x16x{s}x128 f32 0" for s in (2048, 8192)},
    "d96-d192": {
        f"{b}x{h}x{s}x{d} bf16 {c}"
        for d, h in [(96, 20), (192, 10)]
        for b, s in [(32, 512), (8, 2048), (2, 8192)]
        for c in "01"
    },
}


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_sets_are_what_they_are_called(name, device):
    """Without a GPU too: a list is not a measurement."""
    rows = rows_of("--device", device, "--set", name)
    found = [f"{r['shape']} {r['dtype']} {int(r['causal'])}" for r in rows]
    assert set(found) == SETS[name] and len(found) == len(SETS[name])
    assert {r["set"] for r in rows} == {name} and {r["mode"] for r in rows} == {"auto"}


OLD_NAMES = {
    "seed000": "d64-4k",
    "seed002": "single-512",
    "seed003": "fp32-long",
    "seed004": "fp32-d64",
    "fa3": "bf16-16k",
    "dims": "d96-d192",
    "split": "fp32-mixed",
}


def test_old_names_of_sets_work_and_are_not_shown():
    sets = json.loads((ROOT / "cli/sets.json").read_text())
    assert OLD_NAMES == {s["old_name"]: s["name"] for s in sets if "old_name" in s}
    shown = attune("bench", "--help").stdout
    for old, name in OLD_NAMES.items():
        assert rows_of("--set", old) == rows_of("--set", name)
        assert old not in shown
    assert all(f"  {name} " in shown for name in SETS)


def test_a_set_joins_modes_and_dtypes():
    rows = rows_of("--device", "cuda", "--set", "d64-4k,single-512", "--mode", "all")
    assert [r["mode"] for r in rows[:5]] == ["naive", "tiled", "fused", "mma", "wgmma"]
    assert len(rows) == 5 * (8 + 1)
    rows = rows_of("--device", "cuda", "--set", "d64-4k", "--dtype", "bf16,f32", "--causal", "1")
    assert len(rows) == 2 * 4
    assert {r["dtype"] for r in rows} == {"bf16", "f32"} and all(r["causal"] for r in rows)


def test_long_rows_are_for_rungs_of_linear_memory():
    rows = rows_of("--device", "cuda", "--set", "fp32-long", "--mode", "all")
    modes = {}
    for row in rows:
        modes.setdefault(row["seq"], set()).add(row["mode"])
    assert modes[16384] == {"naive", "tiled", "fused", "mma", "wgmma"}
    assert modes[65536] == modes[131072] == {"fused", "mma", "wgmma"}


def test_list_is_a_table_and_a_sheet_too(tmp_path):
    sheet = tmp_path / "rows.csv"
    result = attune("bench", "--set", "decode", "--list", "--csv", sheet)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("| set")
    assert len(result.stdout.splitlines()) == 2 + 4
    assert sheet.read_text().splitlines()[1] == "decode,1x32/8x1/4096x128,bf16,0,none,auto"


def cuda_problem():
    facts = json.loads(attune("info", "--json").stdout)
    cuda = next(backend for backend in facts["backends"] if backend["name"] == "cuda")
    return cuda["why"]


@pytest.mark.parametrize("command", [["check"], ["bench", "--set", "single-512"]])
def test_without_a_gpu_cuda_is_1_and_explained(command, tmp_path):
    why = cuda_problem()
    if not why:
        pytest.skip("there is a GPU")
    result = attune(*command, "--device", "cuda", "--json", tmp_path / "r.json")
    assert result.returncode == 1
    assert f"--device cuda: {why}" in result.stderr
    assert result.stdout == "" and os.listdir(tmp_path) == []


@pytest.mark.gpu
def test_bench_on_a_gpu(tmp_path):
    if cuda_problem():
        pytest.skip(cuda_problem())
    target, sheet = tmp_path / "b.json", tmp_path / "b.csv"
    shapes = "1x8x512x64,1x8/2x1/2048x64"
    options = ["--mode", "auto,naive,tiled,fused", "--dtype", "f16,f32", "--repeats", 3]
    files = ["--json", target, "--csv", sheet]
    result = attune("bench", "--device", "cuda", "--shape", shapes, *options, *files)
    assert result.returncode == 0, result.stderr
    report = json.loads(target.read_text())
    assert len(report["rows"]) == 16 and report["left_out"] == []
    assert len(result.stdout.splitlines()) == 2 + 16 == 1 + len(sheet.read_text().splitlines())
    for row in report["rows"]:
        assert 0 < row["p10_us"] <= row["median_us"] <= row["p90_us"]
        assert 0 < row["warm_us"] < 2 * row["median_us"]
        work = 4 * row["heads"] * row["seq"] * row["seq_k"] * row["dim"]
        assert row["tflops"] == pytest.approx(work / row["median_us"] / 1e6)
        assert 0 < row["pct_peak"] < 110
        assert row["warm_by"] in ("graph", "stream")
        assert (row["extra_mb"] > 0) or row["mode"] != "tiled"
        assert row["kernel"].startswith("sm")
    assert all(peak["median_tflops"] > 0.1 for peak in report["peaks"])


@pytest.mark.gpu
def test_bench_leaves_out_what_cannot_run_and_says_why():
    if cuda_problem():
        pytest.skip(cuda_problem())
    config = "fused.bq128.bk128.v1"  # its accumulators do not fit at D=256
    options = ["--shape", "1x1x64x256", "--mode", "fused", "--config", config, "--repeats", 1]
    result = attune("bench", "--device", "cuda", *options, "--json", "-")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert [row["mode"] for row in report["rows"]] == ["fused"]
    assert [row["config"] for row in report["left_out"]] == [config]
    assert f"left out: 1x1x64x256 {config}: " in result.stderr


def interrupt(*args):
    """Runs a command that takes long, presses Ctrl-C once it has begun, and returns it finished."""
    process = subprocess.Popen(
        [ATTUNE, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stderr.readline()
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_interrupted_check_gives_what_it_has():
    code, out, err = interrupt("check", "--suite", "full", "--isa", "all", "--json", "-")
    assert code == 130, err
    report = json.loads(out)
    assert report["interrupted"] is True
    assert report["cases"] >= 1
    assert "interrupted" in err


def test_interrupted_bench_gives_what_it_has(tmp_path):
    target = tmp_path / "b.json"
    code, out, err = interrupt(
        "bench", "--shape", "1x1x64x16,1x1x128x16", "--repeats", "100000", "--json", str(target)
    )
    assert code == 130, err
    assert json.loads(target.read_text())["interrupted"] is True
    assert out.startswith("| shape")
    assert os.listdir(tmp_path) == ["b.json"]


def on_terminal(*args, columns=80, **environment):
    """What the command writes to a stderr that is a terminal."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {**os.environ, "TERM": "xterm", **environment}
    process = subprocess.Popen([ATTUNE, *args], stdout=subprocess.PIPE, stderr=follower, env=env)
    os.close(follower)
    text = b""
    while True:
        try:
            chunk = os.read(leader, 4096)
        except OSError:  # Linux's way to say that the other side has closed
            break
        if not chunk:
            break
        text += chunk
    out, _ = process.communicate(timeout=60)
    os.close(leader)
    return text.decode(), out.decode()


def test_animation_and_colour_only_on_a_terminal(one_case):
    environment = {"NO_COLOR": ""}  # an empty value counts as not set
    shown, out = on_terminal(*one_case, **environment)
    assert "\r" in shown.replace("\r\n", "\n"), "progress rewrites its line"
    assert "\x1b[32mok" in shown
    assert "\x1b" not in out

    shown, _ = on_terminal(*one_case, NO_COLOR="1")
    assert "\x1b[3" not in shown
    assert "ok: " in shown

    result = attune(*one_case)
    assert "\x1b" not in result.stderr and "\r" not in result.stderr


def drawn_lines(shown):
    """The lines that were drawn over each other, as a terminal shows them."""
    return [re.sub(r"\x1b\[\w*", "", part) for part in re.split(r"[\r\n]+", shown)]


def test_progress_fits_the_terminal(tmp_path):
    commands = (
        TINY_BENCH,
        ["evolve", "--shape", "1x1x32x16", "--budget", "3ev", "--run", str(tmp_path / "run")],
    )
    for command in commands:
        shown, _ = on_terminal(*command, columns=50)
        drawn = [line for line in drawn_lines(shown) if re.match(r"\d+[/:]\d|final", line)]
        assert drawn and max(map(len, drawn)) <= 49, drawn
    # The search has an end, and the comparison after it no clock.
    assert any(re.match(r"\d:\d\d left  ", line) for line in drawn), drawn
    assert any(line.startswith("final comparison  ") for line in drawn), drawn


@pytest.mark.gpu
def test_interrupted_check_on_a_gpu_gives_what_it_has():
    if cuda_problem():
        pytest.skip(cuda_problem())
    code, out, err = interrupt(
        "check", "--device", "cuda", "--suite", "full", "--mode", "naive", "--json", "-"
    )
    assert code == 130, err
    assert json.loads(out)["interrupted"] is True


@pytest.mark.full
@pytest.mark.parametrize(
    "command",
    [
        ["check", "--suite", "full", "--isa", "all"],
        ["bench", "--shape", "1x1x64x16", "--repeats", "100000"],
    ],
    ids=["check", "bench"],
)
def test_a_long_run_in_a_log_says_where_it_is(command):
    process = subprocess.Popen(
        [ATTUNE, *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    begin = time.monotonic()
    process.stderr.readline()  # what will be done
    line = process.stderr.readline()
    waited = time.monotonic() - begin
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert re.match(r"\d+/\d+  \d+ s left  \S", line) and "\x1b" not in line
    assert 9 < waited < 30
