"""attune judge and attune evolve of the example CUDA programs, on a GPU with nvcc."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).resolve().parents[2]
ATTUNE = Path(os.environ.get("ATTUNE_BIN", ROOT / "build" / "attune")).resolve()
EXAMPLES = ROOT / "examples" / "cuda_attention"
SMALL = ["--shape", "2x8x512x64"]


@pytest.fixture(scope="module", autouse=True)
def compiler(device):
    if not (shutil.which("nvcc") or Path("/usr/local/cuda/bin/nvcc").exists()):
        pytest.skip("there is no nvcc")


def attune(*args, timeout=300):
    command = [ATTUNE, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


def test_the_naive_program_is_judged_within_a_minute():
    begin = time.monotonic()
    done = attune("judge", EXAMPLES / "naive.cu", "--json")
    assert time.monotonic() - begin < 60
    assert done.returncode == 0, done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["verdict"] == "ok" and verdict["all_correct"]
    assert verdict["valid_benchmarks"] == len(verdict["benchmarks"]) == 4
    assert 0 < verdict["combined_score"] == pytest.approx(verdict["efficiency_percent"] / 100)
    assert verdict["machine"]["peak_gflops"] > 0 and verdict["kernels"]


def test_the_weak_program_is_refused():
    done = attune("judge", EXAMPLES / "weak.cu", *SMALL, "--json")
    verdict = json.loads(done.stdout)
    assert done.returncode == 1 and verdict["verdict"] == "wrong_result", done.stderr
    assert verdict["combined_score"] == 0 and verdict["why"]


def test_a_short_search_with_the_catalogue_gains(tmp_path):
    run = tmp_path / "run"
    options = ["--with", EXAMPLES / "catalogue", *SMALL, "-i", "12", "--seed", "1", "--run", run]
    done = attune("evolve", EXAMPLES / "naive.cu", *options, timeout=600)
    assert done.returncode == 0, done.stderr
    info = json.loads((run / "best" / "best_program_info.json").read_text())
    assert info["metrics"]["speed_over_start"] > 1.5
    best = attune("judge", run / "best" / "best_program.cu", *SMALL, "--json")
    assert json.loads(best.stdout)["verdict"] == "ok", best.stderr
    environment = json.loads((run / "evidence.json").read_text())["meta"]["environment"]
    assert environment["gpu"] and environment["nvcc"] and environment["gpu_memory_bus_bits"] > 0
    assert attune("evolve", "--replay", run).returncode == 0
