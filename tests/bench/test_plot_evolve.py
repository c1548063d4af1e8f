"""The README's picture of a run: made from the recorded run that the tests replay."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def plot():
    spec = importlib.util.spec_from_file_location("plot_evolve", ROOT / "bench/plot_evolve.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def evidence(plot):
    return plot.evidence_of(plot.RUN)


def test_points_are_the_candidates_of_the_run(plot, evidence):
    points = plot.points_of(evidence)
    assert len(points) == 254
    assert points[0][1:] == (1.0, "naive")
    assert {p[2] for p in points} == {"naive", "tiled", "fused", "mma"}


def test_the_final_speedup_is_the_documented_one(plot, evidence):
    assert round(plot.final_speedup(evidence)) == 258  # docs/evolve.md


def test_the_picture_is_drawn(plot, evidence, tmp_path):
    picture = tmp_path / "run.png"
    plot.draw(evidence, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert plot.PICTURE.is_file()
