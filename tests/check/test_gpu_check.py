"""The full case matrix on every rung of the GPU, through the tool: fresh data each time."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ATTUNE = Path(os.environ.get("ATTUNE_BIN", ROOT / "build" / "attune")).resolve()

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def device():
    facts = json.loads(subprocess.check_output([ATTUNE, "info", "--json"]))
    cuda = next(backend for backend in facts["backends"] if backend["name"] == "cuda")
    if not cuda["usable"]:
        pytest.skip(cuda["why"])


WGMMA_REFUSES = "TMA needs|there are no keys|not batch-invariant|Dv is above 128"


def check(*args):
    result = subprocess.run(
        [ATTUNE, "check", "--device", "cuda", *args, "--json", "-"],
        capture_output=True,
        text=True,
        timeout=900,
    )
    print("\n".join(result.stderr.splitlines()[-8:]))
    assert result.stdout, result.stderr
    report = json.loads(result.stdout)
    assert report["failed"] == [], result.stderr[-4000:]
    for entry in report["refused"]:  # fp32 on tensor cores has no room for wider outputs
        if entry["isa"] == "wgmma":
            assert re.search(WGMMA_REFUSES, entry["why"]), entry
            continue
        assert entry["isa"] == "mma" and entry["name"].startswith("f32."), entry
        dims = re.search(r"\.d(\d+)(?:v(\d+))?", entry["name"])
        assert int(dims[2] or dims[1]) > 192, entry
    assert result.returncode == 0, result.stderr[-4000:]
    return report


def test_full_suite_on_every_rung():
    report = check("--suite", "full", "--mode", "all")
    assert {"naive", "tiled", "fused"} <= set(report["isa"])
    assert report["cases"] >= 3000 * len(report["isa"])


def test_automatic_choice():
    assert check("--mode", "auto")["cases"] >= 100


def test_gradients_on_every_rung():
    report = check("--suite", "full", "--pass", "backward", "--mode", "all")
    assert "fused" in report["isa"]
    assert report["cases"] >= 3000 * len(report["isa"])


def test_user_code_on_every_rung():
    report = check("--mode", "all", "--user-code")
    assert report["cases"] >= 100 * len(report["isa"])
