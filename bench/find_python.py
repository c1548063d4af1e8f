"""Runs a program of this folder with the Python that has its packages."""

import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def need(*packages):
    """Returns where the packages are there. Else starts the program again with .venv of the
    repository, or ends it with the command that makes one."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if not missing:
        return
    names = ", ".join(missing)
    venv = ROOT / ".venv"
    python = venv / "bin" / "python"
    if not python.exists() or Path(sys.prefix).resolve() == venv.resolve():
        sys.exit(f"{sys.executable} has no {names}: run ./x setup, which installs it into .venv")
    print(f"{sys.executable} has no {names}: using .venv/bin/python", file=sys.stderr, flush=True)
    os.execv(python, [str(python), *sys.argv])
