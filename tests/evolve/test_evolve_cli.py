"""attune evolve and report as a user meets them: mistakes, a run's files, replay, promote."""

import hashlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ATTUNE = Path(os.environ.get("ATTUNE_BIN", ROOT / "build" / "attune")).resolve()
TINY = ["--shape", "1x2x96x32"]
# Without a compiler: it takes seconds for each register tile that is not built in.
QUICK = ["env", "PATH=/nonexistent", ATTUNE]


def full(argument):
    """For the full tier: a whole run takes seconds, and the quick tier has others like it."""
    return pytest.param(argument, marks=pytest.mark.full)


@pytest.fixture
def attune(tmp_path):
    """The tool in a folder of its own, with a table of its own."""

    def run(*args, prefix=(), **kwargs):
        env = os.environ | {"ATTUNE_CACHE_DIR": str(tmp_path / "cache")}
        return subprocess.run(
            [*prefix, *QUICK, *map(str, args)],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=tmp_path,
            env=env,
            **kwargs,
        )

    return run


def is_done(result):
    """The run went to its end. Its last comparison may fail on a machine that has other things to
    do: that is exit 1 too, but no error."""
    return result.returncode == 0 or result.returncode == 1 and "attune: " not in result.stderr


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A small run, and what the tool said. Not to be changed."""
    for _ in range(3):
        folder = tmp_path_factory.mktemp("finished") / "run"
        result = subprocess.run(
            [*QUICK, "evolve", *TINY, "--budget", "10ev", "--run", folder, "--json", "-"],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert is_done(result), result.stderr
        if result.returncode == 0:
            break
    assert result.returncode == 0, result.stdout
    return folder, result


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of that run that may be damaged."""
    return Path(shutil.copytree(finished[0], tmp_path / "copy"))


def records(folder):
    with closing(sqlite3.connect(folder / "run.db")) as db:
        return [json.loads(row[0]) for row in db.execute("SELECT json FROM record ORDER BY n")]


def execute(folder, sql, values=()):
    with closing(sqlite3.connect(folder / "run.db")) as db, db:
        db.execute(sql, values)


def reseal(folder):
    """Makes the chain of hashes right again, as whoever changes a run could."""
    (folder / "evidence.json").unlink(missing_ok=True)
    head = ""
    with closing(sqlite3.connect(folder / "run.db")) as db, db:
        for seq, name, text in db.execute(
            "SELECT seq, name, json FROM event ORDER BY seq"
        ).fetchall():
            head = hashlib.sha256(f"{head}\n{name}\n{text}".encode()).hexdigest()
            db.execute("UPDATE event SET hash=? WHERE seq=?", (head, seq))


def change_record(folder, n, change, sealed=True):
    record = records(folder)[n]
    change(record)
    execute(folder, "UPDATE event SET json=? WHERE n=?", (json.dumps(record), n))
    if sealed:
        reseal(folder)


def change_value(folder, name, change):
    """The last one of this name, and the chain."""
    with closing(sqlite3.connect(folder / "run.db")) as db, db:
        select = "SELECT seq, json FROM event WHERE name=? ORDER BY seq DESC LIMIT 1"
        seq, text = db.execute(select, (name,)).fetchone()
        value = change(json.loads(text))
        db.execute("UPDATE event SET json=? WHERE seq=?", (json.dumps(value), seq))
    reseal(folder)


def no_constant(text):
    raise AssertionError(f"{text} is not JSON")


# ---- checkpoints ----


def test_a_run_of_our_own_judge_has_checkpoints_too(finished):
    folder = finished[0]
    (checkpoint,) = (folder / "checkpoints").iterdir()
    meta = json.loads((checkpoint / "metadata.json").read_text(), parse_constant=no_constant)
    assert checkpoint.name == f"checkpoint_{meta['last_iteration']}" == "checkpoint_9"
    programs = [json.loads(p.read_text()) for p in checkpoint.glob("programs/*.json")]
    assert len(programs) == 10
    for program, record in zip(
        sorted(programs, key=lambda p: p["iteration_found"]), records(folder), strict=True
    ):
        assert record["candidate"]["id"] in program["code"]
        speed = program["metrics"]["speed_over_start"]
        assert speed == program["metrics"]["combined_score"]
        assert (speed > 0) == record["outcome"]["ok"]


# ---- help ----


@pytest.mark.parametrize("command", ["evolve", "report"])
def test_help_teaches(attune, command):
    result = attune(command, "--help")
    assert result.returncode == 0
    assert result.stderr == ""
    assert f"Examples:\n  attune {command}" in result.stdout
    lines = re.findall(r"^  attune (.*?)(?:  +.*)?$", result.stdout.split("Examples:")[1], re.M)
    assert len(lines) >= 2
    for line in lines:
        wrong = attune(*line.split(), "--no-such-option")
        assert wrong.returncode == 2
        assert "--no-such-option" in wrong.stderr, line


def test_evolve_and_report_are_in_the_help_and_the_worker_is_not(attune):
    text = attune("--help").stdout
    assert "evolve" in text and "report" in text
    assert "worker" not in text


@pytest.mark.parametrize("device, genes", [("cpu", ["mr", "bk"]), ("cuda", ["block_k"])])
def test_genes_have_values_and_a_meaning(attune, tmp_path, device, genes):
    result = attune("evolve", "--list-genes", "--device", device)
    assert result.returncode == 0, result.stderr
    assert re.search(r"^naive: ", result.stdout, re.M)
    assert "\noperators:\n" in result.stdout
    listed = result.stdout.split("\noperators:\n")
    names = set(re.findall(r"^  (\S+) +(?:algorithm|implementation|hardware) ", listed[0], re.M))
    assert names, listed[0]
    assert set(genes) <= names or len(names) > 5, names
    for operator in ("climb", "descend", "crossover", "immigrant"):
        assert operator in listed[1]
    assert list(tmp_path.iterdir()) == []  # listing makes no run


def test_a_gpu_run_notes_the_rungs_that_it_searches(tmp_path):
    """On a pretended Hopper, which computes nothing: the run ends at its start, but is noted."""
    fake = ATTUNE.parent / "fake"
    if not (fake / "libcuda.so.1").exists():
        pytest.skip("this build has no pretended driver")
    folder = tmp_path / "run"
    options = ["--device", "cuda", "--shape", "1x2x64x64", "--dtype", "f16", "--budget", "1ev"]
    result = subprocess.run(
        [ATTUNE, "evolve", *options, "--run", folder],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "LD_LIBRARY_PATH": str(fake)},
    )
    assert "the start itself fails" in result.stderr, result.stderr
    with closing(sqlite3.connect(folder / "run.db")) as db:
        (text,) = db.execute("SELECT value FROM meta WHERE name = 'run'").fetchone()
    rungs = json.loads(text)["environment"]["rungs"]
    assert rungs == ["naive", "tiled", "fused", "mma", "wgmma"]


# ---- mistakes ----


@pytest.mark.parametrize(
    "args, complaint",
    [
        (["--budget", "soon"], "--budget: 'soon' is not a time (90s, 5m, 1h) or a count (200ev)"),
        (["--budget", ""], "--budget: ''"),
        (["--budget", "-5s"], "--budget: '-5s'"),
        (["--budget", "0ev"], "--budget: '0ev'"),
        (["--budget", "nan"], "--budget: 'nan'"),
        (["--budget", "infev"], "--budget: 'infev'"),
        (["--budget", "5 m"], "--budget: '5 m'"),
        (["--shape", "1x2x96"], "--shape: '1x2x96' has 3 parts"),
        (["--shape", "1x2x0x32"], "--shape: 0 in '1x2x0x32'"),
        (["--shape", "1x4/3x64x32"], "--shape: 4 heads are no multiple of 3 key heads"),
        (["--shape", "1x1x16x257"], "--shape: head dimensions end at 256"),
        (
            ["--shape", "100000x100000x100000x64"],
            "--shape: one copy of the tensors of 100000x100000x100000x64 takes 1.02e+09 GB",
        ),
        (["--shape", "1000000000x1000000000x1000000000x256"], "--shape: one copy of the tensors"),
        (["--set", "nope"], "--set: 'nope' is not one of"),
        (["--set", "single-512", "--shape", "1x1x16x16"], "--set"),
        (["--dtype", "f64"], "--dtype: 'f64' is not one of f32, f16, bf16"),
        (["--causal", "2"], "--causal: '2'"),
        (["--start", "top"], "--start: top"),
        (["--strategy", "hill"], "--strategy: hill"),
        (["--device", "tpu"], "--device: 'tpu'"),
        (["--threads", "-1"], "--threads"),
        (["--threads", "1025"], "--threads"),
        (["--workers", "0"], "--workers"),
        (["--seed", "x"], "--seed: 'x' is not a whole number from 0 to 18446744073709551615"),
        (["--seed", "-1"], "--seed: '-1' is not"),
        (["--seed", "1.5"], "--seed: '1.5' is not"),
        (["--seed", "18446744073709551616"], "--seed: '18446744073709551616' is not"),
        (["--resume", "a", "--replay", "a"], "--resume excludes --replay"),
        (["--resume", "nowhere"], "nowhere holds no run"),
        (["--replay", "nowhere"], "nowhere holds no run"),
        (["--run", "a", "--resume", "b"], "--resume names the folder; --run makes a new one"),
        (["more"], "more"),
    ],
)
def test_bad_usage_is_2_and_explained_on_stderr(attune, tmp_path, args, complaint):
    result = attune("evolve", *args)
    assert result.returncode == 2, result.stderr
    assert complaint in result.stderr
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []  # no run was begun


@pytest.mark.parametrize("option", ["--resume", "--replay"])
@pytest.mark.parametrize("folder", ["nowhere", "."])
def test_a_folder_without_a_run_is_said(attune, tmp_path, option, folder):
    result = attune("evolve", option, folder)
    assert result.returncode == 2
    assert f"{folder} holds no run" in result.stderr
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_report_of_nothing(attune, tmp_path):
    assert attune("report").returncode == 2
    result = attune("report", "nowhere")
    assert result.returncode == 2
    assert "nowhere holds no run" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_never_overwritten(attune, copied):
    before = (copied / "run.db").read_bytes()
    result = attune("evolve", *TINY, "--budget", "3ev", "--run", copied)
    assert result.returncode == 2
    assert f"{copied} already holds a run" in result.stderr
    assert f"--resume {copied}" in result.stderr
    assert result.stdout == ""
    assert (copied / "run.db").read_bytes() == before


def test_what_is_no_database_is_said(attune, tmp_path):
    (tmp_path / "run.db").write_text("not a database " * 100)
    for command in (["evolve", "--resume"], ["evolve", "--replay"], ["report"]):
        result = attune(*command, tmp_path)
        assert result.returncode == 1
        assert "run.db is damaged" in result.stderr


def test_a_shape_that_does_not_fit_is_said(attune, tmp_path):
    """As much as fits memory once, but not as often as it takes: no folder is made for it."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    shape = f"1x1x{pages // 1536}x64"
    for folder in ([], ["--run", "run"]):
        result = attune("evolve", "--shape", shape, "--budget", "2ev", *folder)
        assert result.returncode == 2
        assert f"--shape: shape {shape} f32 is too large to be timed" in result.stderr
        assert list(tmp_path.iterdir()) == []


def test_runs_of_one_second_have_folders_of_their_own(attune, tmp_path):
    args = ["evolve", "--shape", "1x1x8x8", "--budget", "1ev"]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: attune(*args), range(4)))
    for result in results:
        assert is_done(result), result.stderr
    assert len(list((tmp_path / "attune-runs").glob("*/run.db"))) == 4


# ---- a run ----


def test_a_run_leaves_its_files(finished):
    folder, result = finished
    table = json.loads(result.stdout, parse_constant=no_constant)
    assert table["evaluations"] == 10
    assert table["interrupted"] is False
    roles = [role for row in table["rows"] for role in row["roles"]]
    assert sorted(role for role in roles if role != "tried") == ["evolved", "library", "start"]
    for row in table["rows"]:
        assert row["verdict"] == "ok" and row["error"] <= row["limit"]
        assert row["seconds"] > 0
        for ratio in ("over_start", "over_library"):
            low, mid, high = row[ratio]
            assert 0 < low <= mid <= high
    best = next(row for row in table["rows"] if "evolved" in row["roles"])
    assert best["id"] == table["best"]

    assert len(records(folder)) == 10
    assert [r["proposal"]["n"] for r in records(folder)] == list(range(10))
    assert (folder / "report.html").read_text().startswith("<!")
    evidence = json.loads((folder / "evidence.json").read_text(), parse_constant=no_constant)
    assert evidence["best"] == evidence["decision"]["best"] == table["best"]
    assert evidence["decision"]["library_stands"] == table["library_stands"]
    assert evidence["result"] in result.stderr
    assert {p.name for p in (folder / "best").iterdir()} == {
        "best_program.cpp",
        "best_program_info.json",
    }
    info = json.loads((folder / "best" / "best_program_info.json").read_text())
    assert info["id"] == table["best"]
    assert not list(folder.glob("**/*.tmp"))
    assert not (folder / "run.db-wal").exists()  # all of it is in run.db


def test_progress_goes_to_stderr(finished):
    folder, result = finished
    assert result.stderr.startswith("evolving 1x2x96x32 f32 on ")
    assert "10 evaluations" in result.stderr
    assert re.search(r"^\d+:\d\d left  \d+ tried, \d+ failed  best ", result.stderr, re.M)
    assert re.search(r"^final comparison  10 tried, ", result.stderr, re.M)
    assert f"report: {folder}/report.html" in result.stderr
    assert "\r" not in result.stderr and "\x1b" not in result.stderr  # it is no terminal


def test_without_json_there_is_a_table(attune):
    result = attune("evolve", "--shape", "1x1x32x16", "--budget", "3ev", "--seed", 5)
    assert is_done(result), result.stderr
    assert result.stdout.startswith("| kernel")
    assert "3 candidates tried" in result.stdout
    folder = re.search(r"report: (attune-runs/[\d-]+)/report.html", result.stderr)[1]
    assert attune("evolve", "--replay", folder).returncode == 0


@pytest.mark.parametrize(
    "args",
    [
        "--shape 1x1x32x16 --strategy random",
        full("--shape 1x1x40x16 --dtype f16 --causal 1"),
        "--shape 1x1x1x1 --threads 4",
        full("--shape 1x1x32x16 --strategy best-of-n --workers 4"),
        full("--shape 1x1x32x8 --dtype bf16 --start current"),
        full("--shape 1x4/2x64x32 --causal 1 --threads 1"),
        full("--shape 1x1x40/72x8/16 --shape 2x2x33x8"),
    ],
)
def test_strategies_types_and_shapes(attune, tmp_path, args):
    result = attune("evolve", *args.split(), "--budget", "4ev", "--run", "run", "--json", "-")
    assert is_done(result), result.stderr
    table = json.loads(result.stdout, parse_constant=no_constant)
    assert table["evaluations"] == len(records(tmp_path / "run")) == 4
    best = next(row for row in table["rows"] if "evolved" in row["roles"])
    assert (best["verdict"] == "ok") == (result.returncode == 0)
    assert all(row["verdict"] != "wrong_result" for row in table["rows"])
    replayed = attune("evolve", "--replay", "run")
    assert replayed.returncode == 0, replayed.stderr
    assert attune("report", "run").returncode == 0


def test_standard_streams_that_are_closed(attune, tmp_path):
    args = ["evolve", "--shape", "1x1x16x8", "--budget", "2ev", "--run"]
    result = attune(*args, "out", prefix=["sh", "-c", '"$@" <&- >&-', "sh"])
    assert is_done(result), result.stderr
    assert (tmp_path / "out" / "report.html").exists()
    result = attune(*args, "err", "--json", "-", prefix=["sh", "-c", '"$@" 2>&-', "sh"])
    assert json.loads(result.stdout)["evaluations"] == 2
    assert len(records(tmp_path / "err")) == 2


def test_a_result_that_cannot_be_written_is_said_before_the_run(attune, tmp_path):
    result = attune("evolve", *TINY, "--run", "run", "--json", "no/such/folder.json")
    assert result.returncode == 1
    assert "--json: cannot write no/such/folder.json" in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "table, complaint",
    [
        ("file/mine.json", "--table: cannot read file/mine.json"),
        (".", "--table: . is not a file"),
        ("file", "--table: file "),
    ],
)
def test_a_table_that_cannot_be_written_is_said_before_the_run(attune, tmp_path, table, complaint):
    (tmp_path / "file").write_text("not a table")
    result = attune("evolve", *TINY, "--run", "run", "--promote", "--table", table)
    assert result.returncode == 1
    assert complaint in result.stderr
    assert not (tmp_path / "run").exists()
    assert (tmp_path / "file").read_text() == "not a table"


def test_a_file_that_may_not_grow_is_an_error_and_no_signal(attune):
    for blocks in (1, 200, 100_000):  # of 512 bytes, the shell says
        args = ["evolve", "--shape", "1x1x16x8", "--budget", "3ev", "--run", f"run{blocks}"]
        result = attune(*args, prefix=["sh", "-c", f'ulimit -f {blocks}; "$@"', "sh"])
        assert result.returncode == 1, result
        assert re.search(r"File too large|disk I/O error", result.stderr), result.stderr


# ---- resume ----


@pytest.mark.parametrize(
    "args, complaint",
    [
        (["--seed", "5"], "--seed: the run in {} was begun with 0, not with 5"),
        (["--strategy", "random"], "--strategy: the run in {} was begun with evolve"),
        (["--start", "current"], "--start: the run in {} was begun with naive, not with current"),
        (["--workers", "3"], "--workers: the run in {} was begun with 1, not with 3"),
        (["--threads", "77"], "--threads: the run in {} was begun with "),
        (["--device", "cuda"], "--device: the run in {} was begun with cpu, not with cuda"),
        (["--dtype", "f16"], "--dtype: the run in {} was begun with f32, not with f16"),
        (["--causal", "1"], "--causal: the run in {} was begun with 0, not with 1"),
        (["--lse"], "--lse: the run in {} was begun with no LSE, not with LSE"),
        (
            ["--shape", "1x1x16x16"],
            "--shape: the run in {} was begun with 1x2x96x32 f32, not with 1x1x16x16 f32",
        ),
        (["--set", "single-512"], "--set: the run in {} was begun with 1x2x96x32 f32, not with "),
        (["--budget", "soon"], "--budget: 'soon'"),
        (["--seed", "-1"], "--seed: '-1'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_resumed_run_stays_what_it_was(attune, copied, args, complaint):
    before = (copied / "run.db").read_bytes()
    for option in ("--resume", "--replay"):
        if option == "--replay" and args[0] == "--set":
            continue
        result = attune("evolve", option, copied, *args)
        assert result.returncode == 2, result.stderr
        assert complaint.format(copied) in result.stderr
        assert result.stdout == ""
    assert (copied / "run.db").read_bytes() == before


@pytest.mark.full
def test_a_resumed_run_may_be_named_again_and_extended(attune, copied):
    same = [*TINY, "--dtype", "fp32", "--causal", "0", "--seed", "0", "--threads", "0"]
    same += ["--strategy", "evolve", "--start", "naive", "--device", "cpu", "--workers", "1"]
    assert attune("evolve", "--replay", copied, *same).returncode == 0
    before = records(copied)
    result = attune("evolve", "--resume", copied, *same, "--budget", "14ev", "--json", "-")
    assert is_done(result), result.stderr
    assert json.loads(result.stdout)["evaluations"] == 14
    assert "14 evaluations" in result.stderr
    after = records(copied)
    assert len(after) == 14 and after[:10] == before
    replayed = attune("evolve", "--replay", copied)
    assert replayed.returncode == 0, replayed.stderr
    again = attune("evolve", "--resume", copied, "--json", "-")  # and that is its budget now
    assert is_done(again) and json.loads(again.stdout)["evaluations"] == 14


# ---- replay ----


def other_id(record):
    record["proposal"]["id"] = "fused.nothing"


def other_operator(record):
    record["proposal"]["op"] = "none.such"


def other_gene(record):
    record["proposal"]["genome"]["genes"][0] += 2


def better(record):
    record["outcome"]["improved"] = not record["outcome"]["improved"]


def faster(record):
    record["evaluation"]["speedup"]["mid"] *= 1.001


def surer(record):
    record["evaluation"]["speedup"]["low"] = record["evaluation"]["speedup"]["mid"] * 0.9999
    record["evaluation"]["speedup"]["high"] = record["evaluation"]["speedup"]["mid"] * 1.0001


def luckier(record):
    record["evaluation"]["p"] = 1.0 if record["evaluation"]["p"] < 0.5 else 1e-6


def other_samples(record):
    samples = record["evaluation"]["shapes"][0]["candidate"]
    samples[:] = [0.9 * s for s in samples]


def fewer_samples(record):
    record["evaluation"]["shapes"] = []


def other_incumbent(record):
    record["incumbent"] = "fused.nothing"


@pytest.mark.parametrize(
    "change", [faster, surer, luckier, other_samples, fewer_samples, other_incumbent]
)
def test_replay_sees_numbers_that_do_not_follow_from_the_samples(attune, copied, change):
    # The first step up: it was measured in full, and its samples are not all alike.
    n = next(r["proposal"]["n"] for r in records(copied)[1:] if r["outcome"]["improved"])
    change_record(copied, n, change)
    result = attune("evolve", "--replay", copied)
    assert result.returncode == 1, result.stdout
    assert f"evaluation {n} " in result.stderr
    assert "the database was changed" in result.stderr
    assert result.stdout == ""


def test_replay_accepts_what_was_recorded(attune, finished):
    result = attune("evolve", "--replay", finished[0])
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("replayed 10 evaluations")


@pytest.mark.parametrize("change", [other_id, other_operator, other_gene, better])
def test_replay_sees_a_changed_record(attune, copied, change):
    change_record(copied, 5, change)
    result = attune("evolve", "--replay", copied)
    assert result.returncode == 1
    assert re.search(r"\b5\b", result.stderr), result.stderr
    assert result.stdout == ""


def test_a_changed_proposal_is_not_resumed(attune, copied):
    change_record(copied, 5, other_id)
    before = records(copied)
    result = attune("evolve", "--resume", copied)
    assert result.returncode == 1
    assert "proposal 5 was fused.nothing" in result.stderr
    assert records(copied) == before


READERS = (["evolve", "--replay"], ["report"], ["evolve", "--resume"])


def test_a_missing_record_is_seen(attune, copied):
    execute(copied, "DELETE FROM event WHERE n=3")
    for command in READERS:
        result = attune(*command, copied)
        assert result.returncode == 1, command
        assert re.search(r"run.db: record 4 \(event \d+\) does not fit the chain", result.stderr)
    reseal(copied)
    for command in READERS:
        result = attune(*command, copied)
        assert result.returncode == 1, command
        assert "run.db: record 4 stands in place 3" in result.stderr


def sloppier(record):
    record["evaluation"]["error"] /= 10


def test_a_changed_record_is_named_by_the_chain(attune, copied):
    change_record(copied, 5, sloppier, sealed=False)
    for command in READERS:
        result = attune(*command, copied)
        assert result.returncode == 1, command
        assert re.search(r"record 5 \(event \d+\) does not fit the chain", result.stderr)


def test_an_end_that_was_cut_off_is_seen_where_its_head_is_known(attune, copied):
    evidence = json.loads((copied / "evidence.json").read_text())
    info = json.loads((copied / "best" / "best_program_info.json").read_text())
    head = evidence["chain"]["head"]
    assert re.fullmatch("[0-9a-f]{64}", head) and info["provenance"]["head"] == head
    assert head in (copied / "report.html").read_text()
    replayed = attune("evolve", "--replay", copied)
    assert f"{evidence['chain']['events']} events in the chain" in replayed.stdout
    assert replayed.stdout.endswith(f" {head}\n")
    execute(copied, "DELETE FROM event WHERE seq = (SELECT max(seq) FROM event)")
    for command in READERS:
        result = attune(*command, copied)
        assert result.returncode == 1, command
        assert "its end was cut off" in result.stderr


def faster_winner(final):
    final["seconds"][-1] = [[0.5 * s for s in rounds] for rounds in final["seconds"][-1]]
    return final


def faster_library(final):
    final["seconds"][1] = [[0.5 * s for s in rounds] for rounds in final["seconds"][1]]
    return final


def failed_winner(final):
    final["verdicts"][-1]["verdict"] = "wrong_result"
    return final


def other_promotion(decision):
    decision["shapes"][0]["promotes"] = not decision["shapes"][0]["promotes"]
    return decision


def better_ratio(decision):
    decision["over_library"]["low"] *= 1.0001
    return decision


@pytest.mark.parametrize(
    "name, change, complaint",
    [
        ("final", faster_winner, "decision."),
        ("final", faster_library, "decision."),
        ("final", failed_winner, "decision."),
        ("decision", other_promotion, "decision.shapes[0].promotes is not what the samples"),
        ("decision", better_ratio, "decision.over_library.low is not what the samples"),
        ("best", lambda best: "fused.nothing", "the best is recorded as"),
        ("noise", lambda noise: noise | {"margin": noise["margin"] + 0.5}, "decision."),
    ],
)
def test_replay_derives_what_people_read(attune, copied, name, change, complaint):
    change_value(copied, name, change)
    result = attune("evolve", "--replay", copied)
    assert result.returncode == 1, result.stdout
    assert complaint in result.stderr, result.stderr
    assert "the database was changed" in result.stderr


def test_replay_and_report_work_on_another_machine(attune, copied):
    """The space is made of the run's own machine, which has sets and caches that are not here."""

    def elsewhere(meta):
        meta["cpu"]["isas"].insert(0, "Z80")
        meta["cpu"]["archs"]["Z80"] = {"lanes": 16, "registers": 32}
        return meta

    facts = json.loads((copied / "evidence.json").read_text())["meta"]["cpu"]
    assert facts["isas"] and facts["l2_bytes"] > facts["l1_bytes"] > 0
    change_value(copied, "run", elsewhere)
    # Genes name sets by their place in the list: a run of such a machine has other proposals.
    result = attune("evolve", "--replay", copied)
    assert result.returncode == 1 and "proposal " in result.stderr
    assert attune("report", copied).returncode == 0
    resumed = attune("evolve", "--resume", copied)
    assert resumed.returncode == 1
    assert (
        "which has Z80: here it can be replayed and reported, but not continued" in resumed.stderr
    )


def test_a_record_that_is_no_json_is_said(attune, copied):
    execute(copied, "UPDATE event SET json='{' WHERE n=2")
    reseal(copied)
    result = attune("evolve", "--replay", copied)
    assert result.returncode == 1
    assert "record 2 cannot be read" in result.stderr


# ---- report ----


def test_report_writes_the_files_again(attune, copied):
    names = ["report.html", "evidence.json", "best/best_program.cpp", "best/best_program_info.json"]
    kept = {copied / name: (copied / name).read_bytes() for name in names}
    for path in kept:
        path.unlink()
    result = attune("report", copied, "--json", "-")
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout, parse_constant=no_constant)
    assert {Path(p) for p in facts["files"].values()} == set(kept)
    for path, content in kept.items():
        assert path.read_bytes() == content, path


@pytest.mark.parametrize("command", ["$(pkg-config ", "-I$ATTUNE/include "])
def test_the_best_program_compiles_and_runs_as_its_head_says(finished, tmp_path, command):
    libraries = sorted(ATTUNE.parent.glob("libattune.so*"))
    if not libraries or not shutil.which("c++"):
        pytest.skip("no compiler, or no library to link with")
    if "pkg-config" in command and not shutil.which("pkg-config"):
        pytest.skip("no pkg-config")
    # As it is installed, and as a source tree has it.
    lib = tmp_path / "lib"
    (lib / "pkgconfig").mkdir(parents=True)
    for library in libraries:
        (lib / library.name).symlink_to(library)
    shutil.copy(ATTUNE.parent / "attune.pc", lib / "pkgconfig")
    (tmp_path / "build").symlink_to(ATTUNE.parent)
    (tmp_path / "include").symlink_to(ROOT / "include")
    env = {"ATTUNE": str(tmp_path), "PKG_CONFIG_PATH": str(lib / "pkgconfig")}

    shutil.copy(finished[0] / "best" / "best_program.cpp", tmp_path)
    head = (tmp_path / "best_program.cpp").read_text().split("#include")[0]
    lines = [line[2:].strip() for line in head.splitlines() if command in line]
    assert len(lines) == 1, head
    strict = lines[0].replace("c++ ", "c++ -Wall -Wextra -Werror ", 1)
    result = subprocess.run(
        strict, shell=True, cwd=tmp_path, env=os.environ | env, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    line = r"1x2x96x32 f32: (\S+) ms a call .*, error (\S+), allowed .*\n"
    said = re.fullmatch(line, result.stdout)
    assert said, result.stdout
    assert 0 < float(said[1]) < 1000 and float(said[2]) < 1e-5


def test_a_folder_that_cannot_be_made(attune, tmp_path):
    (tmp_path / "file").write_text("")
    result = attune("evolve", *TINY, "--run", "file/run")
    assert result.returncode == 1
    assert result.stderr == "attune: cannot make the folder file/run: Not a directory\n"
    assert result.stdout == ""


# ---- promote ----


@pytest.mark.full
def test_promote_writes_valid_rows_or_says_why_not(attune, tmp_path):
    """Whether the winner beats the library is the machine's matter; what is said must be so."""
    result = attune(
        *("evolve", *TINY, "--shape", "1x1x64x16", "--budget", "8ev", "--start", "current"),
        *("--run", "run", "--promote", "--table", "mine.json"),
    )
    assert is_done(result), result.stderr
    promoted = re.findall(r"^promoted for (\S+) f32: \S+ \((\S+)\.\.", result.stderr, re.M)
    refused = re.findall(r"^not promoted for (\S+) f32: ", result.stderr, re.M)
    nothing = re.findall(r"^nothing to promote: ", result.stderr, re.M)
    if nothing:
        assert not promoted and not refused
    else:
        assert len(promoted) + len(refused) == 2
    assert all(float(low) >= 1 for _, low in promoted)
    assert result.returncode == 0 or not promoted
    assert (tmp_path / "mine.json").exists() == bool(promoted)

    listed = attune("tuned", "list", "--table", "mine.json", "--json", "-")
    assert listed.returncode == 0, listed.stderr
    table = json.loads(listed.stdout)
    assert table["problem"] == ""
    rows = [row for row in table["rows"] if row["source"] == "user"]
    assert len(rows) == len(promoted)
    best = attune("report", "run", "--json", "-")
    for row in rows:
        assert row["applies"], row["why"]
        assert row["provenance"]["speedup"]["low"] > 1
        assert row["provenance"]["run"] == "run"
        assert row["config"] in json.loads(best.stdout)["best"]["id"]
    assert not (tmp_path / "cache" / "tuned.json").exists()  # the user's own table is left alone


SLOW = "mr4.nv2.exp6.bq24.bk32.sp7.dot0.pv1.rs0"  # 7 is in no gene's list
OTHER = SLOW.replace("rs0", "rs2")


def slow_row(shape):
    facts = json.loads(subprocess.run([ATTUNE, "info", "--json"], capture_output=True).stdout)
    batch, heads, seq, dim = map(int, shape.split("x"))
    return {
        "key": f"cpu.attn_fwd.f32.d{dim}",
        "machine": {
            "arch": facts["isa"],
            "device": facts["backends"][0]["device"],
            "threads": facts["threads"],
        },
        "sizes": {"heads": batch * heads, "seq_q": seq, "seq_k": seq},
        "config": SLOW,
        "provenance": {},
    }


def write_table(path, row):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"format": "attune tuned table", "schema": 1, "rows": [row]}))


def rows_of(path):
    return [row["config"] for row in json.loads(path.read_text())["rows"]]


@pytest.mark.full  # a set is made for GPUs: half a second for each call
def test_a_named_set_is_evolved_on_the_cpu(attune, tmp_path):
    result = attune(
        "evolve", "--set", "single-512", "--start", "current", "--budget", "1ev", "--run", "run"
    )
    assert is_done(result), result.stderr
    evidence = json.loads((tmp_path / "run" / "evidence.json").read_text())
    assert [s["name"] for s in evidence["meta"]["shapes"]] == ["1x8x512x64 f16"]
    assert evidence["candidates"][0]["evaluation"]["verdict"] == "ok"


@pytest.mark.full  # five runs, long enough to tell a slow config from a fast one
def test_the_library_is_what_calls_run_with_a_tuned_row(attune, tmp_path):
    shape = "1x2x256x64"
    write_table(tmp_path / "cache" / "tuned.json", slow_row(shape))
    write_table(tmp_path / "cache" / "mine.json", slow_row(shape) | {"config": OTHER})
    common = ["evolve", "--shape", shape, "--start", "current", "--promote"]
    # Into a table whose row the run was not compared with: that row stays.
    result = attune(
        *common, "--budget", "12ev", "--run", "a", "--table", "cache/mine.json", "--json", "-"
    )
    assert is_done(result), result.stderr
    table = json.loads(result.stdout)
    library = next(row for row in table["rows"] if "library" in row["roles"])
    assert library["id"].endswith(SLOW) and "start" in library["roles"]
    first = records(tmp_path / "a")[0]["proposal"]
    assert first["id"].endswith(SLOW) and first["op"] == "start"
    assert rows_of(tmp_path / "cache" / "mine.json") == [OTHER]
    if table["library_stands"] or result.returncode != 0:
        pytest.skip("the machine is too busy to show what is 1.7 times as fast")
    assert f"mine.json has {OTHER}, which the run was not compared with" in result.stderr
    # Into the table that calls read, where the row is what the run was compared with.
    promoted = attune("evolve", "--resume", "a", "--promote")
    if f"promoted for {shape}" not in promoted.stderr:
        pytest.skip("the machine is too busy to show what is 1.7 times as fast")
    (config,) = rows_of(tmp_path / "cache" / "tuned.json")
    assert config != SLOW
    # A resumed or replayed run keeps to what it was begun with; a new one has the new row.
    assert attune("evolve", "--replay", "a").returncode == 0
    again = attune("evolve", "--resume", "a", "--promote")
    if "the library's own choice stands" not in again.stderr:  # by chance
        assert f".{config} now, and the run was compared with" in again.stderr
    assert is_done(attune("evolve", "--shape", shape, "--budget", "2ev", "--run", "b"))
    second = records(tmp_path / "b")[1]["proposal"]
    assert second["id"].endswith(config) and second["op"] == "library"


@pytest.mark.full
def test_a_winner_of_another_instruction_set_can_be_promoted(attune, tmp_path):
    """Calls run the oldest set, whose kernel is several times as slow: the winner is of another."""
    facts = json.loads(subprocess.run([ATTUNE, "info", "--json"], capture_output=True).stdout)
    oldest = facts["isas"][-1]
    if oldest == facts["isa"]:
        pytest.skip("one instruction set runs here")
    shape, old = "1x2x256x64", ("env", f"ATTUNE_ISA={oldest}")
    table = tmp_path / "cache" / "tuned.json"
    for seed in (1, 2, 3):  # a busy machine may hide even that in noise
        args = ["--shape", shape, "--start", "current", "--budget", "16ev", "--seed", seed]
        run = tmp_path / str(seed)
        result = attune("evolve", *args, "--promote", "--run", run, prefix=old)
        assert is_done(result), result.stderr
        if table.exists():
            break
    assert f"promoted for {shape} f32: " in result.stderr, result.stderr
    (row,) = json.loads(table.read_text())["rows"]
    name, config = row["config"].split(".", 1)
    assert name in facts["isas"] and name != oldest
    assert row["machine"]["arch"] == oldest
    best = json.loads((run / "best" / "best_program_info.json").read_text())
    assert best["id"] == f"fused.{name}.{config}"

    # What the row claims can be found again in the run, which nobody changed since.
    with closing(sqlite3.connect(run / "run.db")) as db:
        (head,) = db.execute("SELECT hash FROM event ORDER BY seq DESC LIMIT 1").fetchone()
    assert re.fullmatch("[0-9a-f]{64}", head)
    assert row["provenance"]["head"] == head
    assert row["provenance"]["run"] == run.name
    assert attune("evolve", "--replay", run, prefix=old).stdout.endswith(f" {head}\n")

    # Calls of the oldest set run it.
    args = ["--shape", shape, "--start", "current", "--budget", "1ev", "--run", "after"]
    assert is_done(attune("evolve", *args, prefix=old))
    assert records(tmp_path / "after")[0]["proposal"]["id"] == best["id"]


@pytest.mark.full
def test_a_run_with_lse_finds_a_row_for_calls_with_lse(attune, tmp_path):
    """Calls run the oldest instruction set, as above: the winner is promoted."""
    facts = json.loads(subprocess.run([ATTUNE, "info", "--json"], capture_output=True).stdout)
    oldest = facts["isas"][-1]
    old = ("env", f"ATTUNE_ISA={oldest}")
    table = tmp_path / "cache" / "tuned.json"
    for seed in (1, 2, 3):
        args = ["--shape", "1x2x256x64", "--start", "current", "--budget", "10ev", "--seed", seed]
        run = tmp_path / str(seed)
        result = attune("evolve", *args, "--lse", "--promote", "--run", run, prefix=old)
        assert is_done(result), result.stderr
        if table.exists():
            break
    with closing(sqlite3.connect(run / "run.db")) as db:
        (meta,) = db.execute("SELECT value FROM meta WHERE name = 'run'").fetchone()
    (shape,) = json.loads(meta)["shapes"]
    assert shape["problem"]["lse"] is True and shape["name"] == "1x2x256x64 f32 lse"
    assert "1x2x256x64 f32 lse" in (run / "report.html").read_text()
    info = json.loads((run / "best" / "best_program_info.json").read_text())
    assert all(" --lse" in command for command in info["commands"])
    assert attune("evolve", "--replay", run, prefix=old).returncode == 0

    for given, complaint in (
        (["--lse=false"], "--lse: the run in {} was begun with LSE, not with no LSE"),
        (["--shape", "1x2x256x32"], "was begun with 1x2x256x64 f32 lse, not with 1x2x256x32 f32"),
    ):
        other = attune("evolve", "--resume", run, *given, prefix=old)
        assert other.returncode == 2 and complaint.format(run) in other.stderr, other.stderr
    same = attune("evolve", "--resume", run, "--lse", "--budget", "10ev", prefix=old)
    assert is_done(same), same.stderr

    if oldest == facts["isa"]:
        pytest.skip("one instruction set runs here: nothing to promote")
    (row,) = json.loads(table.read_text())["rows"]
    assert row["key"] == "cpu.attn_fwd.f32.d64.lse"


def test_a_row_for_another_instruction_set_is_the_librarys_choice(attune, tmp_path):
    """best/ can run it too."""
    facts = json.loads(subprocess.run([ATTUNE, "info", "--json"], capture_output=True).stdout)
    other = facts["isas"][-1]
    if other == facts["isa"]:
        pytest.skip("one instruction set runs here")
    shape = "1x2x64x32"
    config = f"{other}.mr4.nv2.exp5.bq64.bk64.sp0.dot2.pv0.rs8"
    write_table(tmp_path / "cache" / "tuned.json", slow_row(shape) | {"config": config})
    result = attune(
        "evolve", "--shape", shape, "--start", "current", "--budget", "1ev", "--run", "a"
    )
    assert is_done(result), result.stderr
    assert records(tmp_path / "a")[0]["proposal"]["id"] == f"fused.{config}"
    assert "The library's own choice stands: 0 others were tried" in result.stderr
    program = (tmp_path / "a" / "best" / "best_program.cpp").read_text()
    assert f'"config": "{config}"' in program and "attune::forward" in program


def test_nothing_is_promoted_without_asking(attune, tmp_path):
    args = ["evolve", "--shape", "1x1x16x8", "--budget", "3ev", "--run", "run"]
    result = attune(*args, "--table", "mine.json")
    assert is_done(result), result.stderr
    assert "promote" not in result.stderr
    assert not (tmp_path / "mine.json").exists()
    assert not (tmp_path / "cache" / "tuned.json").exists()
