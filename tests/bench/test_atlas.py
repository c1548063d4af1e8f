"""The atlas of head dimensions: cells and holes, a run on a GPU that is only pretended and one on
the CPU, and that a run goes on where another ended."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("ATTUNE_BIN", ROOT / "build" / "attune")).resolve().parent
torch = pytest.importorskip("torch", reason="./x setup installs torch")


def load(name, folder="bench"):
    if name in sys.modules:  # one copy for all tests: exceptions are caught by their class
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, ROOT / folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


atlas = load("atlas")
cuda = sys.modules["compare_cuda"]
fakes = load("pretended_gpu", "tests/bench")


# --- cells and holes ------------------------------------------------------------------------------


def cell(dim, tflops, ratio=1.2, **more):
    fields = {"batch": 8, "seq": 2048, "dtype": "bf16", "causal": False}
    return {**fields, "dim": dim, "tflops": tflops, "ratio": ratio, "wrong": "", **more}


def found(cells, device="cuda"):
    return [(hole["dim"], hole["why"]) for hole in atlas.holes_of(cells, device)]


def test_what_a_dimension_pads():
    assert atlas.share_of(64, "cuda") == 1.0
    assert atlas.share_of(72, "cuda") == pytest.approx(144 / (80 + 72))
    assert atlas.share_of(33, "cuda") == pytest.approx(66 / (48 + 40))
    assert atlas.share_of(72, "cpu") == 1.0


def test_holes_are_below_the_peer_or_their_neighbours():
    assert found([cell(64, 500), cell(72, 480), cell(80, 520)]) == []
    assert found([cell(64, 500, ratio=0.99)]) == [(64, "0.990 of the peer")]
    assert found([cell(64, 500, ratio=None)]) == []
    # 72 cannot have more than 144/152 of what 80 has.
    ((dim, why),) = found([cell(64, 400), cell(72, 390), cell(80, 500)])
    assert dim == 72 and why.startswith("0.823 of the 473.7 TFLOP/s")
    assert found([cell(64, 400), cell(72, 403), cell(80, 500)]) == []
    both = found([cell(64, 400, ratio=0.9), cell(80, 500)])
    assert both == [(64, "0.900 of the peer; 0.800 of the 500 TFLOP/s that its neighbour promises")]


def test_neighbours_differ_in_d_alone():
    alone = [cell(64, 100), cell(72, 500, dtype="f16"), cell(72, 500, causal=True)]
    alone += [cell(72, 500, batch=1), cell(80, None)]
    assert atlas.neighbours(alone[0], alone) == []
    near = [cell(64, 100), cell(40, 1), cell(48, 2), cell(96, 3), cell(128, 4)]
    assert [c["dim"] for c in atlas.neighbours(near[0], near)] == [48, 96]


def test_holes_are_of_one_length():
    cells = [cell(64, 500, ratio=0.5, seq=512), cell(64, 500, ratio=0.6)]
    assert found(cells) == [(64, "0.600 of the peer")]
    assert found(cells[:1]) == [(64, "0.500 of the peer")]  # where there is no S=2048


@pytest.mark.parametrize(
    "text, dims",
    [
        ("64", [64]),
        ("32:48", [32, 40, 48]),
        ("32:64:16,40,32", [32, 40, 48, 64]),
    ],
)
def test_dims(text, dims):
    assert atlas.dims_of(text) == dims
    for wrong in ("", "a", "8:16:0", "0", "1:2:3:4"):
        with pytest.raises(ValueError):
            atlas.dims_of(wrong)


def test_the_default_map_is_whole():
    options = atlas.parse_options(["--device", "cpu", "--build", str(BUILD)])
    assert options.dims == [32, 48, 64, 80, 96] and options.causal == [False, True]
    assert atlas.dims_of(atlas.DEFAULTS["cuda"]["dims"]) == list(range(32, 257, 8))
    sizes = atlas.sizes_of(atlas.DEFAULTS["cuda"]["sizes"])
    assert (8, atlas.HOLE_SEQ) in sizes and len(sizes) == 4


# --- runs -----------------------------------------------------------------------------------------


@pytest.fixture
def pretended(monkeypatch, tmp_path):
    monkeypatch.setattr(cuda, "DEVICE", "cpu")
    fakes.pretend(monkeypatch, cuda, tmp_path)
    # Torch's own on the CPU stands for cuDNN.
    plain = lambda name, inputs, causal: atlas.cpu_peer(inputs, causal)  # noqa: E731
    monkeypatch.setattr(cuda, "torch_variant", plain)
    monkeypatch.setattr(
        cuda, "cudnn_lse_variant", lambda inputs, causal: atlas.cpu_peer(inputs, causal)
    )
    small = ["--dims", "16:32:8", "--dtype", "f32", "--sizes", "1x32,2x16", "--rounds", "3"]
    json_file = tmp_path / "atlas.json"

    def run(*args):
        common = ["--device", "cuda", "--build", str(tmp_path), "--json", str(json_file)]
        code = atlas.main([*common, *small, *args])
        return code, json.loads(json_file.read_text())

    monkeypatch.setattr(atlas, "HEADS", 2)
    return run


@pytest.mark.parametrize("lse", [[], ["--lse"]])
def test_a_run_on_a_gpu(lse, pretended, tmp_path, capsys):
    code, report = pretended(*lse)
    assert code == 0
    assert len(report["cells"]) == 3 * 2 * 2 and report["unreached"] == 0
    assert report["peer"] == "cudnn" and report["lse"] == bool(lse)
    for name, one in report["cells"].items():
        assert name.startswith(f"{one['batch']}x2x{one['seq']}x{one['dim']} f32")
        assert one["ci"][0] <= one["ratio"] <= one["ci"][1]
        assert one["tflops"] > 0 and one["kernel"].endswith("pretended")
    assert all(hole["seq"] == 32 for hole in report["holes"])
    said = capsys.readouterr()
    assert said.out.startswith("| dtype | causal |") and "holes at S=32" in said.out
    assert (tmp_path / "atlas.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_goes_on_where_another_ended(pretended, monkeypatch, capsys):
    code, nothing = pretended("--budget", "-1", "--plot", "none")
    assert code == 0 and nothing["cells"] == {} and nothing["unreached"] == 12
    assert "12 cells were not reached" in capsys.readouterr().out
    _, some = pretended("--sizes", "2x16", "--plot", "none")
    _, all_of_them = pretended("--plot", "none")
    assert len(some["cells"]) == 6 and len(all_of_them["cells"]) == 12
    assert some["cells"].items() <= all_of_them["cells"].items()
    monkeypatch.setattr(atlas, "cell_of", None)  # nothing is left to measure
    assert pretended("--plot", "none")[1]["cells"] == all_of_them["cells"]
    assert pretended("--lse", "--plot", "none")[0] == 1
    assert "lse is False there and True here; name another file" in capsys.readouterr().err


def test_what_is_wrong_fails(pretended, monkeypatch, capsys):
    monkeypatch.setattr(fakes.FakeCall, "spoil", 0.5)
    code, report = pretended("--dims", "16", "--sizes", "1x32")
    assert code == 1 and all(one["wrong"] for one in report["cells"].values())
    assert report["holes"] == []
    said = capsys.readouterr()
    assert "WRONG 1x2x32x16 f32" in said.err and "| WRONG |" in said.out


@pytest.mark.parametrize("lse", [[], ["--lse"]])
def test_a_run_on_the_cpu(lse, tmp_path):
    """With the library, in a process of its own."""
    target = tmp_path / "map.json"
    args = ["--dims", "32,40", "--causal", "1", "--sizes", "1x48", "--rounds", "3"]
    result = subprocess.run(
        [sys.executable, ROOT / "bench" / "atlas.py", "--device", "cpu", "--build", BUILD]
        + ["--json", target, *args, *lse],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(target.read_text())
    assert report["peer"] == "sdpa" and report["device"] == "cpu"
    assert set(report["cells"]) == {"1x16x48x32 f32 causal", "1x16x48x40 f32 causal"}
    for one in report["cells"].values():
        assert one["ratio"] > 0 and one["tflops"] > 0 and not one["wrong"]
        assert ".lse" in one["kernel"] if lse else ".lse" not in one["kernel"]
    assert target.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "args, complaint",
    [
        (["--dims", "8:x"], "--dims: cannot read '8:x'"),
        (["--sizes", "8"], "--sizes: cannot read '8'"),
        (["--dtype", "f64"], "'f64' is not one of"),
        (["--causal", "2"], "'2' is not one of 0, 1"),
        (["--rounds", "0"], "--rounds: 0 is not positive"),
    ],
)
def test_bad_usage_is_2(args, complaint, capsys):
    with pytest.raises(SystemExit) as stop:
        atlas.main(["--device", "cpu", *args])
    assert stop.value.code == 2
    assert complaint in capsys.readouterr().err
