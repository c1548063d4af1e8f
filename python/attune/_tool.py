"""The command-line tool that came with the package: `attune bench`, `attune evolve`, ..."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from . import _library


def path():
    tool = _library.find("bin/attune", "attune")
    if tool is None:
        raise FileNotFoundError(
            f"the attune tool is neither in the package nor in a build: {_library.folders()}"
        )
    return tool


def main():
    try:
        tool = path()
    except FileNotFoundError as error:
        sys.exit(f"attune: {error}")
    os.execv(tool, [str(tool), *sys.argv[1:]])


def run(program):
    """A program of the package, from the command line: Ctrl-C is no error to trace."""
    try:
        sys.exit(program())
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)


def write_text(path, text):
    """False, with a word, where that fails: what took minutes was printed already."""
    try:
        Path(path).write_text(text)
        return True
    except OSError as error:
        print(f"{path} cannot be written: {error}", file=sys.stderr)
        return False


def evolve(
    shape="1x8x1024x64",
    *,
    module=None,
    dtype=None,
    causal=None,
    device=None,
    budget=None,
    **options,
):
    """Evolves an attention kernel for this machine, as `attune evolve` does, and returns its
    result: the kernels that were compared at the end, with speed-ups, intervals and errors.
    Without more said: float32, not causal, on the CPU, for 90 seconds.

    Other options of the tool are keywords: start="current", seed=1, run="folder", promote=True.
    Progress goes to stderr; the run's folder has the report.

    module="module.py" evolves the Model of a torch file instead, as python -m attune.evolve_module
    does: help(attune.evolve_module.evolve) has its keywords (output, budget, iterations, ...)."""
    if module is not None:
        if dtype is not None or causal is not None or shape != "1x8x1024x64":
            raise TypeError("shape, dtype and causal are for kernels: a module has its own")
        from .evolve_module import evolve as evolve_module

        return evolve_module(module, device=device, budget=budget, **options)
    dtype, device, budget = dtype or "f32", device or "cpu", budget or "90s"
    shapes = [shape] if isinstance(shape, str) else list(shape)
    command = [path(), "evolve", "--dtype", dtype, "--causal", str(int(causal or False))]
    command += ["--device", device, "--budget", str(budget)]
    for one in shapes:
        command += ["--shape", one]
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            command.append(flag)
        elif value is not None and value is not False:
            command += [flag, str(value)]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        with subprocess.Popen([*command, "--json", out], stdout=subprocess.DEVNULL) as done:
            try:
                done.wait()
            except KeyboardInterrupt:
                done.wait()  # it had the signal too, and is writing down the best so far
                raise
        if not out.exists() or not out.stat().st_size:
            raise RuntimeError(f"attune evolve ended with code {done.returncode}; stderr says why")
        return json.loads(out.read_text())
