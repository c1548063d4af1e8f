"""A run that was recorded on a GPU, replayed and reported where there is none."""

import gzip
import json
import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ATTUNE = Path(os.environ.get("ATTUNE_BIN", ROOT / "build" / "attune")).resolve()
RECORDED = Path(__file__).parent / "data" / "h200_seed000.db.gz"
EVALUATIONS = 254


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run.db").write_bytes(gzip.decompress(RECORDED.read_bytes()))
    return tmp_path


def attune(*args):
    return subprocess.run([ATTUNE, *map(str, args)], capture_output=True, text=True, timeout=120)


def test_it_follows_from_its_seed_and_its_samples(folder):
    result = attune("evolve", "--replay", folder)
    assert result.returncode == 0, result.stderr
    assert f"replayed {EVALUATIONS} evaluations" in result.stdout
    assert "The verdicts are those of rule 1" in result.stdout
    assert "the records have no chain of hashes" in result.stdout


def test_a_better_sample_is_seen(folder):
    with closing(sqlite3.connect(folder / "run.db")) as db:
        (text,) = db.execute("SELECT json FROM record WHERE n = 11").fetchone()
        record = json.loads(text)
        samples = record["evaluation"]["shapes"][0]["candidate"]
        record["evaluation"]["shapes"][0]["candidate"] = [value / 2 for value in samples]
        db.execute("UPDATE record SET json = ? WHERE n = 11", (json.dumps(record),))
        db.commit()
    result = attune("evolve", "--replay", folder)
    assert result.returncode == 1
    assert "evaluation 11" in result.stderr, result.stderr


def test_it_is_not_continued(folder):
    result = attune("evolve", "--resume", folder)
    assert result.returncode == 1
    assert "has schema 1, without a chain of hashes: it can be replayed" in result.stderr


def test_its_report_names_the_device_and_the_ladder(folder):
    result = attune("report", folder)
    assert result.returncode == 0, result.stderr
    page = (folder / "report.html").read_text()
    assert "NVIDIA H200" in page
    assert "have no chain of hashes" in page
    for rung in ("naive", "tiled", "fused", "mma"):
        assert rung in page
    info = json.loads((folder / "best" / "best_program_info.json").read_text())
    assert info["id"].startswith("mma.")


def nvcc():
    return shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")


def test_its_best_program_is_the_kernels_themselves(folder):
    assert attune("report", folder).returncode == 0
    program = (folder / "best" / "best_program.cu").read_text()
    assert not [line for line in program.splitlines() if line.startswith('#include "')]
    command = next(line[2:].split() for line in program.splitlines() if "-DKERNEL=0" in line)
    assert command[:3] == ["nvcc", "-std=c++20", "-arch=sm_90a"]
    assert program.count("#if KERNEL == ") == 2  # causal and not
    if nvcc() is None:
        pytest.skip("there is no nvcc: the program was not compiled")
    for n in range(2):
        words = [f"-DKERNEL={n}" if word == "-DKERNEL=0" else word for word in command[1:]]
        made = subprocess.run(
            [nvcc(), *words], cwd=folder / "best", capture_output=True, text=True, timeout=300
        )
        assert made.returncode == 0, made.stderr
        assert b"attune_mma" in (folder / "best" / "best_program.cubin").read_bytes()
