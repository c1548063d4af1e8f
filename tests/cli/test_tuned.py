"""attune tuned: list, show, remove; and that a row of the table is what a call runs."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ATTUNE = Path(os.environ.get("ATTUNE_BIN", ROOT / "build" / "attune")).resolve()
CONFIG = "mr6.nv2.exp6.bq96.bk64.sp0.dot2.pv1.rs4"


@pytest.fixture
def attune(tmp_path):
    """The tool with a cache folder of its own."""

    def run(*args):
        env = os.environ | {"ATTUNE_CACHE_DIR": str(tmp_path)}
        return subprocess.run(
            [ATTUNE, *map(str, args)], capture_output=True, text=True, timeout=300, env=env
        )

    return run


def facts():
    return json.loads(subprocess.run([ATTUNE, "info", "--json"], capture_output=True).stdout)


def row(**changes):
    here = facts()
    return {
        "key": "cpu.attn_fwd.f32.d64",
        "machine": {
            "arch": here["isa"],
            "device": here["backends"][0]["device"],
            "threads": here["threads"],
        },
        "sizes": {"heads": 2, "seq_q": 128, "seq_k": 128},
        "config": CONFIG,
        "provenance": {
            "date": "2026-11-15T10:00:00Z",
            "speedup": {"low": 1.031, "mid": 1.082, "high": 1.12},
            "run": "runs/7",
        },
    } | changes


def write(folder, rows, name="tuned.json", **changes):
    document = {"format": "attune tuned table", "schema": 1, "rows": rows} | changes
    (folder / name).write_text(json.dumps(document))


def listed(attune, *args):
    result = attune("tuned", "list", "--json", "-", *args)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def user_rows(attune, *args):
    return [row for row in listed(attune, *args)["rows"] if row["source"] == "user"]


def test_help_teaches(attune):
    result = attune("tuned", "--help")
    assert result.returncode == 0
    assert "Examples:\n  attune tuned list" in result.stdout
    for line in re.findall(r"^  attune (.*)$", result.stdout.split("Examples:")[1], re.M):
        wrong = attune(*line.split(), "--no-such-option")
        assert "--no-such-option" in wrong.stderr, line


@pytest.mark.parametrize(
    "args, complaint",
    [
        ([], "subcommand is required"),
        (["melt"], "melt"),
        (["show"], "row"),
        (["show", "9999"], "no row '9999'"),
        (["remove"], "remove takes a row, or --all"),
        (["remove", "1", "--all"], "remove takes a row, or --all"),
    ],
)
def test_wrong_usage_is_exit_2(attune, args, complaint):
    result = attune("tuned", *args)
    assert result.returncode == 2
    assert complaint in result.stderr
    assert result.stdout == ""


def test_list_says_what_applies_and_why_not(attune, tmp_path):
    here = row()["machine"]
    write(
        tmp_path,
        [
            row(),
            row(machine=here | {"device": "Another"}),
            row(machine=here | {"arch": "Z80"}),
            row(machine=here | {"threads": here["threads"] + 1}),
            row(config="mr6"),
            row(key="sm90.attn_fwd.bf16.d64", config=CONFIG),
            {"key": "cpu"},
            row(config=CONFIG.replace("bk64", "bk9999")),
            row(config=CONFIG.replace("rs4", "rs-nan")),
            row(key="cpu.attn_fwd.f32.d64.sideways"),
        ],
    )
    result = listed(attune)
    assert result["table"] == str(tmp_path / "tuned.json")
    assert result["problem"] == ""
    rows = [r for r in result["rows"] if r["source"] == "user"]
    assert [r["number"] for r in rows] == list(range(1, 11))
    assert len({r["id"] for r in rows}) == 7  # three other configs stand where the first row does
    why = [(r["applies"], r["why"]) for r in rows]
    assert why[0] == (True, "")
    assert why[1] == (False, "tuned for another processor")
    assert why[2] == (False, f"tuned for Z80; this machine runs {here['arch']}")
    assert why[3][0] and why[3][1].startswith(f"calls with {here['threads'] + 1} threads")
    assert why[4] == (False, "mr6 is not a config of this version")
    assert why[5] == (False, f"{CONFIG} is not a config of this version")
    assert why[6] == (False, "machine is missing or wrong")
    assert why[7] == (False, "block_k is not in 1..256")
    assert why[8] == (False, "rescale_threshold is not in 0..32")
    assert why[9] == (False, "cpu.attn_fwd.f32.d64.sideways is no kernel of this version")

    text = attune("tuned", "list")
    first = text.stdout.splitlines()[1]
    for part in [rows[0]["id"], "user", "cpu.attn_fwd.f32.d64", "2x128x128", "2026-11-15", "yes"]:
        assert part in first
    assert "1.082 [1.031, 1.120]" in first
    assert str(tmp_path / "tuned.json") in text.stderr


def test_defaults_are_rows_with_a_source(attune):
    rows = json.loads(attune("tuned", "list", "--defaults", "--json", "-").stdout)["rows"]
    assert {r["rung"] for r in rows} == {"mma", "wgmma"}
    assert all(r["config"].startswith(r["rung"] + ".") and r["source"] for r in rows)
    text = attune("tuned", "list", "--defaults").stdout
    assert len(text.splitlines()) == len(rows) + 1
    for row in rows:
        assert row["calls"] in text and row["config"] in text


def test_show_has_all_of_a_row(attune, tmp_path):
    write(tmp_path, [row()])
    text = attune("tuned", "show", "1")
    assert text.returncode == 0
    assert CONFIG in text.stdout and '"run": "runs/7"' in text.stdout
    only = json.loads(attune("tuned", "show", "1", "--json", "-").stdout)
    assert only["provenance"] == row()["provenance"]
    assert attune("tuned", "show", only["id"]).stdout == text.stdout


def test_remove_by_number_by_id_and_all(attune, tmp_path):
    sizes = [{"heads": n, "seq_q": 128, "seq_k": 128} for n in (1, 2, 4, 8)]
    write(tmp_path, [row(sizes=s) for s in sizes])
    assert attune("tuned", "remove", "2").returncode == 0
    assert [r["sizes"] for r in user_rows(attune)] == [sizes[0], sizes[2], sizes[3]]
    assert attune("tuned", "remove", user_rows(attune)[0]["id"]).returncode == 0
    assert [r["sizes"] for r in user_rows(attune)] == sizes[2:]
    result = attune("tuned", "remove", "--all")
    assert result.returncode == 0
    assert result.stdout == f"2 rows removed from {tmp_path / 'tuned.json'}\n"
    assert user_rows(attune) == []
    assert attune("tuned", "remove", "--all").returncode == 0


def test_shipped_rows_stay(attune):
    shipped = listed(attune)["rows"]
    for r in shipped[:1]:
        result = attune("tuned", "remove", r["number"])
        assert result.returncode == 2
        assert "cannot be removed" in result.stderr
    assert listed(attune)["rows"] == shipped


def test_another_table(attune, tmp_path):
    write(tmp_path, [row()], name="mine.json")
    assert user_rows(attune) == []
    mine = ["--table", tmp_path / "mine.json"]
    assert len(user_rows(attune, *mine)) == 1
    assert attune("tuned", "remove", "1", *mine).returncode == 0
    assert user_rows(attune, *mine) == []


@pytest.mark.parametrize(
    "text, reason",
    [
        ('{"format": "attune tu', "is damaged: not valid JSON"),
        ('{"name": "left-pad"}', "is not a tuned table"),
        ('{"format": "attune tuned table", "schema": 9, "rows": []}', "has schema 9"),
    ],
)
def test_what_is_no_table_is_ignored_and_left_alone(attune, tmp_path, text, reason):
    (tmp_path / "tuned.json").write_text(text)
    result = attune("tuned", "list", "--json", "-")
    assert result.returncode == 0
    assert reason in json.loads(result.stdout)["problem"]
    assert reason in result.stderr
    for command in (["show", "9999"], ["remove", "9999"], ["remove", "--all"]):
        refused = attune("tuned", *command)
        assert refused.returncode == 1
        assert reason in refused.stderr
    assert (tmp_path / "tuned.json").read_text() == text


def test_a_row_is_what_a_call_runs(attune, tmp_path):
    bench = ["bench", "--shape", "1x2x128x64", "--mode", "fused", "--repeats", "1", "--json", "-"]
    before = attune(*bench)
    assert before.returncode == 0, before.stderr
    assert CONFIG not in before.stdout
    write(tmp_path, [row()])
    after = attune(*bench)
    assert after.returncode == 0, after.stderr
    assert f"cpu.attn_fwd.f32.d64/{CONFIG}" in after.stdout
