#!/usr/bin/env python3
"""Runs the cells of quickstart.ipynb and writes what they print into it:

    PYTHONPATH=python notebooks/refresh.py

Jupyter is not needed. Run it after a change to a cell, or to what a cell prints."""

import contextlib
import io
import json
import os
import tempfile
from pathlib import Path

NOTEBOOK = Path(__file__).resolve().parent / "quickstart.ipynb"


def run(notebook):
    """The notebook with the outputs of its cells, run in the current folder."""
    names = {"__name__": "__main__"}
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        count += 1
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
        text = printed.getvalue().splitlines(keepends=True)
        cell["execution_count"] = count
        cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": text}]
    return notebook


def main():
    notebook = json.loads(NOTEBOOK.read_text())
    with tempfile.TemporaryDirectory() as folder:
        here = os.getcwd()
        os.chdir(folder)
        try:
            run(notebook)
        finally:
            os.chdir(here)
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
