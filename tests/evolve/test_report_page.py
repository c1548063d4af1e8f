"""attune report: the page is one well-formed file that fetches nothing and fits a phone."""

import json
import math
import os
import re
import shutil
import sqlite3
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ATTUNE = Path(os.environ.get("ATTUNE_BIN", ROOT / "build" / "attune")).resolve()
HOSTILE = "\"><script>alert(1)</script><img src=x onerror='alert(2)'>&amp;"
SECTIONS = (
    "final use progress ladder lineage archive verdicts errors operators strategy noise environment"
)
VOID = {"meta", "br", "img", "input", "hr", "link", "wbr"}
APPLICATION, SCHEMA = 0x41545445, 1


def report(folder, *args):
    return subprocess.run(
        [ATTUNE, "report", folder, *args], capture_output=True, text=True, timeout=60
    )


# ---- a run by hand ----

SHAPE = "1x8x256x64"
FLAGS = "softcap alibi sinks ragged dropout lse batch_invariant strict_fp32 score_mod mask_mod"
PROBLEM = (
    {"dtype": "f32", "batch": 1, "heads_q": 8, "heads_kv": 8, "seq_q": 256, "seq_k": 256}
    | {"dim": 64, "dim_v": 64, "causal": False, "window_left": -1, "window_right": -1}
    | {"block_mask_q": 0, "block_mask_k": 0, "alignment": "top-left", "mask": 0}
    | dict.fromkeys(FLAGS.split(), False)
)
META = {
    "version": "0.0.0",
    "device": "cpu",
    "machine": HOSTILE,
    "shapes": [{"name": SHAPE, "weight": 1.0, "problem": PROBLEM}],
    "threads": 1,
    "compiles": False,
    "strategy": "evolve",
    "start": "naive",
    "seed": 2**64 - 1,
    "window": 1,
    "budget_seconds": 90,
    "budget_evaluations": 0,
    "environment": {HOSTILE: HOSTILE, "load": [0.1, 0.2]},
    "created": "2026-01-01T00:00:00Z",
}


def interval(low, mid, high):
    return {"low": low, "mid": mid, "high": high}


def evaluation(verdict="ok", stage="measure", why="", seconds=0.001):
    samples = [seconds * (1 + 0.01 * (i % 5)) for i in range(15)]
    return {
        "verdict": verdict,
        "stage": stage,
        "why": why,
        "source_hash": "",
        "binary_hash": "",
        "same_as": "",
        "error": "nan" if verdict == "wrong_result" else 1e-6,
        "limit": 1e-5,
        "shapes": [{"shape": SHAPE, "candidate": samples, "incumbent": samples}],
        "speedup": interval(1.01, 1.02, 1.03),
        "p": 0.001,
        "compile_seconds": 0.0,
        "seconds": 0.2,
    }


def record(n, fused_genes):
    ok = n % 9 != 4
    identity = "naive" if n == 0 else f"fused.{n}.{HOSTILE if n == 7 else 'x' * 90}"
    genes = list(fused_genes) if n else []
    if genes:
        genes[n % len(genes)] += 1
    why = f"{HOSTILE} {n} " + "very long " * 200
    return {
        "proposal": {
            "n": n,
            "id": identity,
            "op": "start" if n == 0 else "hardware.tile",
            "parent": max(0, n - 8) if n else -1,
            "other": -1,
            "island": 0,
            "genome": {"family": int(n > 0), "genes": genes},
        },
        "candidate": {"id": identity, "config": identity, "source": ""},
        "evaluation": evaluation() if ok else evaluation("wrong_result", "check", why),
        "outcome": {"ok": ok, "fitness": math.log1p(n / 10), "improved": ok and n % 8 == 0},
        "incumbent": "naive",
        "progress": 0.0,
        "at": 0.25 * n,
    }


def final(records):
    chosen = [records[0], records[1], records[len(records) // 8 * 8 - 8]]
    return {
        "candidates": [r["candidate"] for r in chosen],
        "seconds": [[[t * (1 + 0.01 * (i % 3)) for i in range(25)]] for t in (0.1, 0.01, 0.009)],
        "verdicts": [evaluation(stage="promote") for _ in chosen],
    }


def write_run(folder, count, genes=()):
    folder.mkdir()
    db = sqlite3.connect(folder / "run.db")
    db.execute("PRAGMA journal_mode=WAL")
    db.execute(f"PRAGMA application_id={APPLICATION}")
    db.execute(f"PRAGMA user_version={SCHEMA}")
    db.execute("CREATE TABLE meta(name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID")
    db.execute(
        "CREATE TABLE record(n INTEGER PRIMARY KEY, id TEXT, verdict TEXT, stage TEXT, op TEXT,"
        " parent INTEGER, fitness REAL, at REAL, json TEXT NOT NULL)"
    )
    records = [record(n, genes) for n in range(count)]
    values = {"schema": SCHEMA, "run": META}
    if count > 20:
        values["final"] = final(records)
        values["noise"] = {"ratio": [0.99, 1.0, 1.01], "margin": 0.01, "spread": 0.002}
        values["operators"] = [{"name": HOSTILE, "tried": 5, "valid": 4, "improved": 3}]
        values["elites"] = [
            {"cell": [1, 0, c], "island": 0, "n": 8 * c, "fitness": 0.1 * c} for c in range(3)
        ]
    db.executemany("INSERT INTO meta VALUES(?,?)", [(k, json.dumps(v)) for k, v in values.items()])
    db.executemany(
        "INSERT INTO record VALUES(?,?,'','','',0,0,0,?)",
        [(r["proposal"]["n"], r["proposal"]["id"], json.dumps(r)) for r in records],
    )
    db.commit()
    db.close()
    return folder


@pytest.fixture(scope="module")
def genes(tmp_path_factory):
    """A value for each gene of the second rung, as the tool itself lists them."""
    folder = write_run(tmp_path_factory.mktemp("genes") / "run", 0)
    result = report(folder)
    assert result.returncode == 0, result.stderr
    families = json.loads((folder / "evidence.json").read_text())["space"]["families"]
    return [gene["values"][0] for gene in families[1]["genes"]]


@pytest.fixture(scope="module", params=[0, 1, 60, 1000])
def run(request, tmp_path_factory, genes):
    folder = write_run(tmp_path_factory.mktemp("runs") / "run", request.param, genes)
    result = report(folder)
    assert result.returncode == 0, result.stderr
    return folder, request.param


# ---- the page ----


class Page(HTMLParser):
    """Refuses tags that do not nest, and collects what is there."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.tags, self.attributes = [], [], set(), []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, self.getpos()


def test_page_is_well_formed_and_alone(run):
    folder, count = run
    text = (folder / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    assert set(SECTIONS.split()) <= set(page.ids)
    assert page.tags.isdisjoint({"script", "img", "link", "iframe", "object", "form"})
    assert "://" not in text
    assert not re.search(r"url\(|@import", text)
    assert not [a for a in page.attributes if a[1].startswith("on") or a[1] == "src"]
    # Links lead to the files beside the page, and nowhere else.
    links = {value for tag, name, value in page.attributes if name == "href"}
    best = {"best/best_program.cpp", "best/best_program_info.json"} if count else set()
    assert links == {"evidence.json"} | best
    assert all((folder / link).is_file() for link in links)
    assert ("meta", "name", "viewport") in page.attributes
    assert "prefers-color-scheme" in text
    assert len(text.encode()) < 2_000_000
    if count:
        assert text.count('<svg viewBox="0 0 480 300" role="img" aria-label="Speed relative') == 1
        assert text.count('class="winner"') == 1
        assert (">winner</text>" in text) == (count > 20)
    assert not re.search(r"\b(nan|inf)\b", re.sub(r"<style>.*?</style>", "", text, flags=re.S))


def test_files_beside_it(run):
    folder, count = run
    evidence = json.loads((folder / "evidence.json").read_text())
    assert len(evidence["candidates"]) == count
    assert evidence["meta"]["machine"] == HOSTILE
    assert (folder / "best").exists() == (count > 0)
    if count == 0:
        return
    info = json.loads((folder / "best" / "best_program_info.json").read_text())
    assert info["machine"] == HOSTILE
    program = folder / "best" / "best_program.cpp"
    if shutil.which("c++"):
        subprocess.run(
            ["c++", "-std=c++20", "-fsyntax-only", "-I", ROOT / "include", program], check=True
        )


def test_json_and_table(tmp_path, genes):
    folder = write_run(tmp_path / "run", 60, genes)
    shown = report(folder)
    assert shown.returncode == 0, shown.stderr
    gain = "Nothing was gained over the library's own choice: the evolved kernel is "
    assert gain not in shown.stdout
    assert shown.stdout.startswith("The evolved kernel is 1.111× (1.111 to 1.111) as fast as the ")
    assert ", and 11.1× (11.1 to 11.1) as fast as the start (95 % intervals).\n" in shown.stdout
    assert re.search(r"^start .*10\d ms .*×", shown.stdout, re.M), shown.stdout
    assert f"{folder}/report.html" in shown.stdout
    answer = json.loads(report(folder, "--json", "-").stdout)
    assert answer["best"]["comparison"][0]["speedup"]["low"] > 10
    assert shown.stdout.startswith(answer["gain"])
    page = (folder / "report.html").read_text()
    assert "<pre>attune evolve --resume . --promote</pre>" in page
    assert "<pre>attune evolve --replay .</pre>" in page
    assert page.index("The evolved kernel is") < page.index("<section")
    for path in answer["files"].values():
        assert Path(path).is_file()


@pytest.mark.parametrize(
    "change, complaint",
    [
        ("PRAGMA user_version=9", "has schema 9, and this attune reads schema 2"),
        ("PRAGMA application_id=9", "no run of attune"),
        ("UPDATE record SET json='{' WHERE n=3", "record 3 cannot be read"),
        ("DELETE FROM record WHERE n=3", "record 4 stands in place 3"),
        ("UPDATE meta SET value='{}' WHERE name='run'", "cannot be read"),
    ],
)
def test_a_run_that_is_not_one(tmp_path, genes, change, complaint):
    folder = write_run(tmp_path / "run", 8, genes)
    db = sqlite3.connect(folder / "run.db")
    db.execute(change)
    db.commit()
    db.close()
    result = report(folder)
    assert result.returncode == 1
    assert complaint in result.stderr
    assert result.stdout == ""


def test_no_run_at_all(tmp_path):
    result = report(tmp_path)
    assert result.returncode == 2
    assert "no run.db" in result.stderr


# ---- in a browser ----


def browser():
    names = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")
    return next(filter(None, map(shutil.which, names)), None)


@pytest.mark.full
@pytest.mark.skipif(browser() is None, reason="there is no chromium or google-chrome here")
def test_kernels_are_readable_at_1280_pixels(tmp_path, genes):
    """No table of ids is cut off: as wide as its box, so that nothing has to be scrolled."""
    folder = write_run(tmp_path / "run", 60, genes)
    assert report(folder).returncode == 0
    (folder / "frame.html").write_text(
        '<iframe src="report.html" style="border:0;width:1280px;height:800px"></iframe>'
        "<script>onload=()=>{const d=document.querySelector('iframe').contentDocument;"
        "document.body.append([...d.querySelectorAll('#final .scroll, #progress .scroll')].map("
        "e=>`box ${e.scrollWidth} of ${e.clientWidth}`).join(', '))}</script>"
    )
    result = subprocess.run(
        [browser(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        + ["--allow-file-access-from-files", f"--user-data-dir={tmp_path / 'profile'}"]
        + ["--virtual-time-budget=5000", "--dump-dom", (folder / "frame.html").as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    found = re.findall(r"box (\d+) of (\d+)", result.stdout.split("</script>")[-1])
    assert len(found) == 2, result.stdout[-500:] + result.stderr[-500:]
    assert all(int(inner) <= int(box) for inner, box in found), found


@pytest.mark.full
@pytest.mark.skipif(browser() is None, reason="there is no chromium or google-chrome here")
@pytest.mark.parametrize("width", [320, 390, 1280])
def test_page_does_not_scroll_sideways(run, tmp_path, width):
    folder, count = run
    if count == 1000 and width != 390:
        pytest.skip("the long page is looked at once")
    # The page allows no script, so a frame around it does the measuring.
    (folder / "frame.html").write_text(
        f'<iframe src="report.html" style="border:0;width:{width}px;height:800px"></iframe>'
        "<script>onload=()=>{const d=document.querySelector('iframe').contentDocument,"
        "e=d.documentElement;document.body.append(`width ${e.scrollWidth} of ${e.clientWidth},"
        " sections ${d.querySelectorAll('section').length}`)}</script>"
    )
    result = subprocess.run(
        [browser(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        + ["--allow-file-access-from-files", f"--user-data-dir={tmp_path / 'profile'}"]
        + ["--virtual-time-budget=5000", "--dump-dom", (folder / "frame.html").as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    found = re.search(r"width (\d+) of (\d+), sections (\d+)", result.stdout.split("</script>")[-1])
    assert found, result.stdout[-500:] + result.stderr[-500:]
    assert int(found[1]) <= int(found[2]) <= width
    assert int(found[3]) == len(SECTIONS.split())
