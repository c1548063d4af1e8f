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
