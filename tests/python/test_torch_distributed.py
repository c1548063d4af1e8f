"""Several processes over gloo: DistributedDataParallel, and attention in a ring."""

import json
import os
import subprocess
import sys
from pathlib import Path

import attune
import pytest
import torch
from attune.distributed import _Shards

SCRIPT = Path(__file__).parent / "processes" / "training.py"


def of_processes(case, world, folder):
    """What each of them found."""
    environment = {**os.environ, "PYTHONPATH": attune.__path__[0] + "/.."}
    done = subprocess.run(
        [sys.executable, SCRIPT, case, str(world), folder],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_data_parallel(tmp_path):
    """The gradients of two processes are one's of the whole batch."""
    for found in of_processes("data_parallel", 2, tmp_path):
        assert len(found) == 6 and max(found.values()) < 1e-5, found


def test_ring(tmp_path):
    """Four processes with a part of the sequence each, and one with all of it."""
    for rank, found in enumerate(of_processes("ring", 4, tmp_path)):
        for name, differences in found["differences"].items():
            limit = 0.02 if "bf16" in name else 1e-13 if "float64" in name else 1e-5
            assert len(differences) == 5
            assert max(differences.values()) < limit, (name, differences)
        rows, different, dimensions = found["refusals"]
        assert f"this process has {4 + rank} rows" in rows and "has 16" in rows
        assert "as many rows each" in different and "need 4 dimensions" in dimensions
        assert found["group"] < 1e-5


@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 100])
def test_every_row_has_one_place(length, world):
    shards = _Shards(length, world)
    places = [shards.positions(rank) for rank in range(world)]
    assert torch.equal(torch.cat(places).sort().values, torch.arange(length))
    for rank, place in enumerate(places):
        assert len(place) == sum(shards.rows(rank))
        assert torch.equal(place, place.sort().values)
    # A causal row i costs i + 1: the processes' sums are nearly the same.
    work = [(place + 1).sum().item() for place in places]
    assert max(work) - min(work) <= 2 * length
