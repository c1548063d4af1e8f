"""What README and docs tell users to type: commands whose options exist, code that runs, sets of
shapes that have the rows of a table."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ATTUNE = Path(os.environ.get("ATTUNE_BIN", ROOT / "build" / "attune")).resolve()
README = ROOT / "README.md"
# Not the notes, which say what was typed on a day.
DOCUMENTS = [README, *(f for f in sorted((ROOT / "docs").rglob("*.md")) if "notes" not in f.parts)]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


def blocks(text, kind):
    return [body for name, body in BLOCK.findall(text) if name == kind]


def commands(text):
    """The arguments of each `attune ...` in a block of a document, and of each `build/attune ...`
    between its words."""
    lines = "".join(blocks(text, "sh")).replace("\\\n", " ").splitlines()
    lines += re.findall(r"`(build/attune [^`\n]+)`", BLOCK.sub("", text))
    for line in lines:
        found = re.match(r"(?:[^#]*? )?(?:build/)?attune ([a-z-].*)", line)
        if found is None or "--help" in found[1]:
            continue
        words = shlex.split(found[1].replace("<rung>", "mma"), comments=True)
        ends = [at for at, word in enumerate(words) if word in ("|", ">", "&&", ";")]
        yield words[: min(ends, default=len(words))]


ALL = {file.relative_to(ROOT): list(commands(file.read_text())) for file in DOCUMENTS}


def test_commands_are_found():
    assert len(ALL[Path("README.md")]) > 10 and sum(map(len, ALL.values())) > 40
    text = "```sh\nX=1 build/attune bench \\\n  --dim 64 | head  # or attune info\n./attune\n```\n"
    assert list(commands(text + "By `build/attune check --a b` and `attune x`.")) == [
        ["bench", "--dim", "64"],
        ["check", "--a", "b"],
    ]


@pytest.mark.parametrize("document", [file for file, found in ALL.items() if found], ids=str)
def test_options_of_commands_exist(document):
    for command in ALL[document]:
        # A last option that no command has: the parser complains of this one alone.
        done = subprocess.run(
            [ATTUNE, *command, "--no-such-option"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )
        said = f"attune {shlex.join(command)}: {done.stdout + done.stderr}"
        assert done.returncode == 2 and "--no-such-option" in done.stderr, said


def test_the_first_snippet_of_the_readme_runs():
    pytest.importorskip("torch")
    code = blocks(README.read_text(), "python")[0]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "python")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("cpu.attn_fwd.f32.d64/")


DTYPES = {"f32": "fp32", "f16": "fp16", "bf16": "bf16"}  # in the sets, and in the table


def rows_of_sets(names):
    """{(dtype, head dimension, causal): sequence lengths} of the sets that bench/ and the tool
    share."""
    found = {}
    for shared in json.loads((ROOT / "cli/sets.json").read_text()):
        for group in shared["groups"] if shared["name"] in names else ():
            for shape in group["shapes"]:
                seq, dim = shape.split("x")[2:]
                for causal in group["causal"]:
                    key = (DTYPES[group["dtype"]], int(dim), causal)
                    found.setdefault(key, set()).add(int(seq))
    return found


def lengths_of(head):
    """Of a column: S=512, 4k, or one of two."""
    return [int(n) * (1024 if k else 1) for n, k in re.findall(r"(\d+)(k?)", head)]


def test_the_sets_that_repeat_the_readmes_table_have_its_rows():
    text = README.read_text()
    table = re.search(r"^\| forward, H200.*\n((?:\|.*\n)+)", text, re.M)
    columns = [lengths_of(head) for head in table[0].splitlines()[0].split("|")[2:-1]]
    (sets,) = re.findall(r"--set (\S+) ?[^`]*` repeats", text)
    measured, checked = rows_of_sets(sets.split(",")), 0
    for line in table[1].splitlines()[1:]:
        name, *cells = (cell.strip() for cell in line.split("|")[1:-1])
        dtype, dim = name.split(",")[0].split()[0], int(re.search(r"D=(\d+)", name)[1])
        for lengths, cell in zip(columns, cells, strict=True):
            # "1.2 / 1.3": full and causal; "5.1, 5.8": each of the column's lengths.
            for causal in (False, True)[: cell.count("/") + 1 if cell else 0]:
                there = measured[dtype, dim, causal] & set(lengths)
                assert len(there) > cell.count(","), (name, lengths, causal)
                checked += 1
    assert checked > 25
