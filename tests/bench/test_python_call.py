"""The verdict of bench/python_call.py, on times that are made up."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytest.importorskip("torch", reason="./x setup installs torch")


@pytest.fixture(scope="module")
def python_call():
    spec = importlib.util.spec_from_file_location("python_call", ROOT / "bench" / "python_call.py")
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


def part(**us):
    return [{"name": name.replace("_", "."), "us": value} for name, value in us.items()]


@pytest.mark.parametrize(
    "ours, reached", [(25.5, [False, False]), (16.9, [True, False]), (16.0, [True, True])]
)
def test_ours_takes_a_share_of_the_host_time(python_call, ours, reached):
    rows = part(sdpa=28.3, attune=ours, attune_attention=ours + 0.5)
    bars = python_call.verdicts({f"calls {python_call.HOST_SHAPE}": rows, "modules": []})
    assert [bar["reached"] for bar in bars] == reached
    assert bars[0]["measured"] == f"{ours / 28.3:.3f}"
    assert "attune: at most 0.6 of SDPA's host time" in bars[0]["bar"]


def test_only_small_calls_on_a_gpu_are_judged(python_call):
    rows = part(sdpa=28.3, attune=20.0, attune_attention=20.0)
    assert python_call.verdicts({"calls 1x8x512x64": rows}) == []
    here = part(sdpa=28.3, attune=20.0, attune_attention=20.0, library=9.0)
    assert python_call.verdicts({f"calls {python_call.HOST_SHAPE}": here}) == []
