"""The picture of the README: made by a command, from data that is committed."""

import hashlib
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "docs" / "data" / "h200-forward.json"
PICTURE = ROOT / "docs" / "images" / "h200-forward.png"
PROVENANCE = "hardware date driver cuda torch cudnn fa3 method command unit".split()


def texts_of(png):
    """The tEXt chunks of a PNG, as a dictionary."""
    found, at = {}, 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        kind, body = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        if kind == b"tEXt":
            name, _, value = body.partition(b"\0")
            found[name.decode()] = value.decode()
        at += length + 12
    return found


def digest():
    return hashlib.sha256(DATA.read_bytes()).hexdigest()


def test_the_data_says_where_it_comes_from():
    data = json.loads(DATA.read_text())
    assert all(data[name] for name in PROVENANCE)
    assert len(data["rows"]) == 8
    for row in data["rows"]:
        assert set(row["tflops"]) == {"attune", "attune_lse", "fa3", "cudnn"}
        assert all(value is None or 100 < value < 1000 for value in row["tflops"].values())


def test_the_committed_picture_is_made_from_the_data():
    png = PICTURE.read_bytes()
    assert png.startswith(b"\x89PNG")
    assert texts_of(png)["attune-data-sha256"] == digest(), "run bench/plot_readme.py"


def test_the_command_makes_the_picture(tmp_path):
    pytest.importorskip("matplotlib")
    target = tmp_path / "picture.png"
    command = [sys.executable, ROOT / "bench" / "plot_readme.py", "--out", target]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert texts_of(target.read_bytes())["attune-data-sha256"] == digest()
    assert os.listdir(tmp_path) == ["picture.png"]


def a_run():
    """What compare_torch.py --json would write for the rows of the data; test_compare_cuda.py makes
    one by that program."""
    rows = []
    for at, row in enumerate(json.loads(DATA.read_text())["rows"]):
        figures = {"auto": 500.4, "lse": 450.6, "cudnn": 400.0, "fa3": 300.0, "flash": 200.0}
        variants = {name: {"tflops": value + at} for name, value in figures.items()}
        if row["dim"] == 128:
            variants["fa3"] = {"refused": "not here"}
        dtype = row["dtype"].replace("fp16", "f16")
        kept = {name: row[name] for name in ("shape", "causal")}
        rows.append({**kept, "dtype": dtype, "ours": "auto", "variants": variants})
    said = {
        "date": "2027-01-02",
        "driver": "600.1",
        "cuda": "13.1",
        "torch": "2.12",
        "command": "c",
    }
    return {"rows": rows, "wrong": 0, "device": "NVIDIA H200", "cudnn": 92100, **said}


def plot_from(run, folder):
    (folder / "run.json").write_text(json.dumps(run))
    if not (folder / "data.json").exists():
        (folder / "data.json").write_bytes(DATA.read_bytes())
    command = [sys.executable, ROOT / "bench" / "plot_readme.py", "--from", folder / "run.json"]
    command += ["--data", folder / "data.json", "--out", folder / "picture.png"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_the_data_is_made_from_a_run(tmp_path):
    pytest.importorskip("matplotlib")
    result = plot_from(a_run(), tmp_path)
    assert result.returncode == 0, result.stderr
    before, text = json.loads(DATA.read_text()), (tmp_path / "data.json").read_bytes()
    data = json.loads(text)
    assert all(data[name] for name in PROVENANCE)
    assert (data["date"], data["cudnn"], data["driver"]) == ("2027-01-02", "9.21", "600.1")
    assert data["matmul"] == before["matmul"]
    for at, (old, new) in enumerate(zip(before["rows"], data["rows"], strict=True)):
        fa3 = None if old["dim"] == 128 else 300 + at
        figures = {"attune": 500 + at, "attune_lse": 451 + at, "fa3": fa3, "cudnn": 400 + at}
        assert new == {**old, "tflops": figures}
    drawn = texts_of((tmp_path / "picture.png").read_bytes())
    assert drawn["attune-data-sha256"] == hashlib.sha256(text).hexdigest()
    # A second run, on another card: what was measured of the first one's says nothing of it.
    result = plot_from(a_run() | {"device": "NVIDIA B200"}, tmp_path)
    assert result.returncode == 0, result.stderr
    data = json.loads((tmp_path / "data.json").read_text())
    assert data["hardware"] == "NVIDIA B200" and "matmul" not in data


@pytest.mark.parametrize(
    "change, complaint",
    [
        (lambda run: run.update(wrong=2), "2 rows gave a wrong result"),
        (lambda run: run.update(driver=""), "the run does not say: driver"),
        (lambda run: run["rows"].pop(3), "the run has no row bf16 8x16x2048x128 causal"),
        (lambda run: run["rows"][0]["variants"].pop("lse"), "is --lse missing?"),
    ],
)
def test_a_run_that_is_not_enough_is_refused(change, complaint, tmp_path):
    pytest.importorskip("matplotlib")
    run = a_run()
    change(run)
    result = plot_from(run, tmp_path)
    assert result.returncode == 2 and complaint in result.stderr
    assert (tmp_path / "data.json").read_bytes() == DATA.read_bytes()
