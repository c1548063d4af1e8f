"""examples/train_gpt.py: a model trains with Attune's attention as with torch's."""

import hashlib
import importlib.util
import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--layers", "2", "--width", "32", "--heads", "2", "--seq", "48", "--batch", "4"]


@pytest.fixture(scope="module")
def program():
    sys.path.insert(0, str(ROOT / "python"))
    path = ROOT / "examples" / "train_gpt.py"
    spec = importlib.util.spec_from_file_location("train_gpt", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_text_depends_on_the_seed_alone(program):
    text = program.make_text(0, 5000)
    assert text == program.make_text(0, 5000) != program.make_text(1, 5000)
    assert len(text) >= 5000 and len(set(text)) < 50


def test_where_curves_are_furthest_apart(program):
    losses = {"torch": [3.0, 2.0, 1.0], "math": [3.0, 2.0, 1.01], "attune": [3.0, 2.02, 1.0]}
    found = program.compare({"losses": losses})
    assert found["attune_and_torch"] == {"difference": pytest.approx(0.02), "step": 2}
    assert found["math_and_torch"]["step"] == 3 and found["agree"]
    losses["attune"][1] = 2.05
    assert not program.compare({"losses": losses})["agree"]
    losses["attune"] = [3.0, 2.0, float("nan")]
    assert not program.compare({"losses": losses})["agree"]


@pytest.mark.parametrize(
    "arguments", [["--steps", "0"], ["--width", "30", "--heads", "4"], ["--attention", "mine"]]
)
def test_bad_arguments_are_named(program, arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        program.main(arguments)
    assert stop.value.code == 2
    assert arguments[0] in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_both_train_alike(program, dtype, tmp_path, capsys):
    out, picture = tmp_path / "run.json", tmp_path / "run.png"
    options = [*SMALL, "--steps", "30", "--dtype", dtype, "--json", str(out)]
    assert program.main([*options, "--plot", str(picture)]) == 0
    said = capsys.readouterr().out
    assert "the losses agree" in said and "tokens/s" in said
    result = json.loads(out.read_text())
    ours, torchs = result["losses"]["attune"], result["losses"]["torch"]
    assert len(ours) == len(torchs) == 30 and torchs[-1] < 0.9 * torchs[0]
    limit = 1e-4 if dtype == "f32" else 0.03
    assert max(abs(a - b) for a, b in zip(ours, torchs, strict=True)) < limit
    assert result["explained"]["backward"]["chosen"] not in ("", "torch")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert program.main([*options[:-2], "--attention", "torch"]) == 0
    assert "attune" not in capsys.readouterr().out


def test_the_shipped_run_reached_its_end(program):
    result = json.loads((ROOT / "docs" / "data" / "train-gpt.json").read_text())
    assert result["comparison"] == program.compare(result) and result["comparison"]["agree"]
    assert all(len(losses) == 200 for losses in result["losses"].values())
    picture = (ROOT / "docs" / "images" / "train-gpt.png").read_bytes()
    digest = hashlib.sha256((ROOT / "docs" / "data" / "train-gpt.json").read_bytes()).hexdigest()
    assert digest.encode() in picture
