"""attune evolve on a GPU, from end to end: climbs, verifies, can be replayed."""

import json
import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).resolve().parents[2]
ATTUNE = Path(os.environ.get("ATTUNE_BIN", ROOT / "build" / "attune")).resolve()


@pytest.fixture(scope="module", autouse=True)
def device():
    facts = json.loads(subprocess.check_output([ATTUNE, "info", "--json"]))
    cuda = next(backend for backend in facts["backends"] if backend["name"] == "cuda")
    if not cuda["usable"]:
        pytest.skip(cuda["why"])


def attune(*args):
    return subprocess.run([ATTUNE, *map(str, args)], capture_output=True, text=True, timeout=300)


def test_a_run(tmp_path):
    folder = tmp_path / "run"
    options = ["--shape", "2x16x512x64", "--dtype", "f16", "--budget", "8ev", "--seed", "1"]
    table = ["--promote", "--table", tmp_path / "table.json"]
    result = attune(
        "evolve", "--device", "cuda", *options, "--run", folder, *table, "--json", tmp_path / "r"
    )
    assert result.returncode == 0, result.stderr
    evidence = json.loads((folder / "evidence.json").read_text())
    assert len(evidence["candidates"]) == 8
    assert all(c["evaluation"]["verdict"] == "ok" for c in evidence["candidates"])
    start, *_ = evidence["final"]["candidates"]
    assert start["id"].startswith("naive")
    assert json.loads((folder / "best" / "best_program_info.json").read_text())["id"] != start["id"]
    replayed = attune("evolve", "--replay", folder)
    assert replayed.returncode == 0, replayed.stderr


def test_twins_are_not_better(tmp_path):
    options = ["--shape", "2x16x512x64", "--dtype", "f16", "--self-test", "10"]
    result = attune("evolve", "--device", "cuda", *options, "--json", tmp_path / "twins.json")
    report = json.loads((tmp_path / "twins.json").read_text())
    assert result.returncode == 0, report["failures"]
    assert report["accepted"] == 0 and report["failed"] == 0
