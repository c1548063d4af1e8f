"""The quickstart runs from top to bottom on this machine, and ships with what it prints."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

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
