"""The quickstart runs from top to bottom on this machine, and ships with what it prints."""

import importlib.util
import json
import re
from pathlib import Path

import pytest
from attune._library import MODES

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"


def code_cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def printed(notebook):
    return ["".join(t for o in cell["outputs"] for t in o["text"]) for cell in code_cells(notebook)]


@pytest.fixture
def shipped():
    return json.loads((FOLDER / "quickstart.ipynb").read_text())


def test_it_ships_with_outputs(shipped):
    texts = printed(shipped)
    assert texts and all(texts)
    assert [cell["execution_count"] for cell in code_cells(shipped)] == list(
        range(1, len(texts) + 1)
    )
    for text in texts:
        assert not re.search(r"(^|[\s'\"])/\w|Traceback|Error", text), text


def test_it_installs_what_the_build_needs(shipped):
    script = (FOLDER.parent / "x").read_text()
    listed = re.search(r"^build_packages='\n(.*?)'$", script, re.M | re.S)[1]
    needed = {line.split()[0] for line in listed.splitlines()}
    colab_has = {"g++", "cmake"}
    # What only the tests need; pip builds without them.
    of_tests = {"libgtest-dev"}
    text = "".join("".join(cell["source"]) for cell in shipped["cells"])
    installed = set(re.search(r"apt-get install -y ([^`]*)`", text)[1].split())
    assert installed == needed - colab_has - of_tests
    assert re.findall(r"pip install [^`]*", text) == ["pip install -v ."]


def test_its_ladder_has_every_rung(shipped):
    (cell,) = (cell for cell in code_cells(shipped) if "mode=mode" in "".join(cell["source"]))
    rungs = re.search(r"for mode in \((.*)\)", "".join(cell["source"]))[1]
    assert set(re.findall(r"\w+", rungs)) == MODES.keys() - {"auto", "reference"}


@pytest.mark.full
def test_quickstart(shipped, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("refresh", FOLDER / "refresh.py")
    refresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(refresh)
    texts = printed(refresh.run(shipped))
    assert all(texts)
    text = "".join(texts)
    assert "largest difference" in text and "naive: error" in text and "evolved" in text
    assert (tmp_path / "attention.png").exists()
    assert (tmp_path / "notebook-run" / "report.html").exists()
