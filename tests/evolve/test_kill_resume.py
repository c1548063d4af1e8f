"""attune evolve is stopped, killed and starved: what was committed stays, and --resume goes on."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ATTUNE = Path(os.environ.get("ATTUNE_BIN", ROOT / "build" / "attune")).resolve()
# Without a compiler: it takes seconds for each register tile that is not built in.
QUICK = ["env", "PATH=/nonexistent", ATTUNE]
COUNT = 16
SMALL = ["--shape", "1x1x32x16", "--budget", f"{COUNT}ev"]
PATIENCE = 60  # seconds, on a machine that has other things to do


def attune(*args, prefix=(), **kwargs):
    return subprocess.run(
        [*prefix, *QUICK, *map(str, args)], capture_output=True, text=True, timeout=120, **kwargs
    )


def is_done(result):
    """The run went to its end. Its last comparison may fail on a machine that has other things to
    do: that is exit 1 too, but no error."""
    return result.returncode == 0 or result.returncode == 1 and "attune: " not in result.stderr


@pytest.fixture
def start():
    """Starts the tool in a session of its own, and leaves nothing behind."""
    started = []

    def begin(*args):
        process = subprocess.Popen(
            [*QUICK, "evolve", *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # What nohup ignores is ignored by all below it.
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def query(folder, sql):
    with closing(sqlite3.connect(folder / "run.db", timeout=10)) as db:
        return db.execute(sql).fetchall()


def rows(folder):
    return query(folder, "SELECT n, json FROM record ORDER BY n")


def wait_for(what):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if what():
            return
        time.sleep(0.01)
    raise AssertionError("waited too long")


def wait_for_rows(process, folder, count):
    def there():
        assert process.poll() is None, process.communicate()
        try:
            return query(folder, "SELECT count(*) FROM record")[0][0] >= count
        except sqlite3.OperationalError:  # not made yet
            return False

    wait_for(there)


def children(pid):
    """The processes that this one started, as (pid, start): a number alone may be used again."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.add((int(stat.parent.name), fields[19]))
    return found


def is_alive(child):
    pid, began = child
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[19] == began and fields[0] not in "ZX"


def wait_for_end(processes):
    wait_for(lambda: not any(map(is_alive, processes)))


def check_finished(folder, before=()):
    """All of the budget is there, what was there before is as it was, and it all fits together."""
    after = rows(folder)
    assert [n for n, _ in after] == list(range(COUNT))
    assert after[: len(before)] == list(before)
    assert query(folder, "PRAGMA integrity_check") == [("ok",)]
    replayed = attune("evolve", "--replay", folder)
    assert replayed.returncode == 0, replayed.stderr
    assert replayed.stdout.startswith(f"replayed {COUNT} evaluations")
    evidence = json.loads((folder / "evidence.json").read_text())
    assert evidence["best"]
    assert (folder / "best" / "best_program.cpp").exists()
    assert not list(folder.glob("*.tmp"))


def test_ctrl_c_leaves_a_report_and_can_be_resumed(start, tmp_path):
    folder = tmp_path / "run"
    process = start(*SMALL, "--run", folder, "--workers", 4, "--json", tmp_path / "result.json")
    wait_for_rows(process, folder, 3)

    # Meanwhile nobody else may write there, but look.
    second = attune("evolve", "--resume", folder)
    assert second.returncode == 1
    assert f"in use by process {process.pid}:" in second.stderr
    assert second.stdout == ""
    assert attune("report", folder).returncode == 0
    assert attune("evolve", "--replay", folder).returncode == 0

    os.killpg(process.pid, signal.SIGINT)  # as a terminal does it
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err
    assert err.endswith(f"stopped; go on with: attune evolve --resume {folder}\n")
    before = rows(folder)
    assert 3 <= len(before) < COUNT
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["interrupted"] is True
    assert result["evaluations"] == len(before)
    assert out.startswith(f"best so far: {result['best']}, about ")
    assert (folder / "report.html").exists() and (folder / "evidence.json").exists()
    assert attune("evolve", "--replay", folder).returncode == 0

    result = attune("evolve", "--resume", folder, "--json", "-")
    assert is_done(result), result.stderr
    assert json.loads(result.stdout)["evaluations"] == COUNT
    check_finished(folder, before)


def test_ctrl_c_in_the_final_comparison_ends_soon(start, tmp_path):
    folder, answer = tmp_path / "run", tmp_path / "result.json"
    # Naive loops of this size take a quarter of a second: comparing them takes many.
    process = start("--shape", "1x8x1024x64", "--budget", "1ev", "--run", folder, "--json", answer)
    wait_for_rows(process, folder, 1)
    time.sleep(1)
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    took = time.monotonic() - begin
    assert process.returncode == 130, err
    assert took < 10, took  # about 2 on a quiet machine
    result = json.loads(answer.read_text())
    assert result["interrupted"] is True and result["best"]
    assert out.startswith(f"best so far: {result['best']}, about ")
    assert (folder / "best" / "best_program.cpp").exists()
    assert json.loads((folder / "best" / "best_program_info.json").read_text())["id"]


@pytest.mark.full
def test_killed_again_and_again(start, tmp_path):
    folder = tmp_path / "run"
    before = []
    kills = [
        (signal.SIGKILL, 2),
        (signal.SIGTERM, 4),
        (signal.SIGKILL, 7),
        (signal.SIGHUP, 10),
        (signal.SIGKILL, COUNT),  # in the final comparison
    ]
    for which, count in kills:
        process = start(*(["--resume", folder] if before else [*SMALL, "--run", folder]))
        wait_for_rows(process, folder, count)
        workers = children(process.pid)
        process.send_signal(which)
        process.communicate(timeout=PATIENCE)
        assert process.returncode == -which
        # The kernel ends a worker with its parent. Some may have come after we looked.
        workers |= children(process.pid)
        wait_for_end(workers)
        after = rows(folder)
        assert len(after) >= count
        assert after[: len(before)] == before
        assert query(folder, "PRAGMA integrity_check") == [("ok",)]
        before = after

    result = attune("evolve", "--resume", folder)
    assert is_done(result), result.stderr
    check_finished(folder, before)
    # A run that is over is only compared again.
    again = attune("evolve", "--resume", folder)
    assert is_done(again), again.stderr
    check_finished(folder, before)


def test_killed_at_any_moment_of_the_start(start, tmp_path):
    """There is a run, or there is none and it can be begun again."""
    for n, pause in enumerate([0.001, 0.01, 0.03, 0.06, 0.1]):
        folder = tmp_path / f"run{n}"
        process = start(*SMALL, "--run", folder)
        time.sleep(pause)
        process.kill()
        process.communicate()
        result = attune("evolve", "--replay", folder)
        if result.returncode == 0:
            continue
        assert re.search(r"holds no run|never began", result.stderr), result.stderr
        again = attune("evolve", "--shape", "1x1x8x8", "--budget", "1ev", "--run", folder)
        assert is_done(again), again.stderr


def in_a_mount(script):
    """A prefix that runs `script`, which may mount, and then the command; or why there is none."""
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", script, "sh"]


def can_mount(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mount")
    try:
        prefix = in_a_mount(f"mount -t tmpfs -o size=64k none {folder}")
        return subprocess.run(prefix, capture_output=True, timeout=60).returncode == 0
    except OSError:
        return False


@pytest.fixture(scope="module")
def mounts(tmp_path_factory):
    if not can_mount(tmp_path_factory):
        pytest.skip("no user namespaces, or no mounts in them")


@pytest.mark.full
def test_a_full_disk_is_said_and_what_was_committed_stays(mounts, tmp_path):
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    kept.mkdir()
    script = f"""
        mount -t tmpfs -o size=128k none {disk}
        "$@" >{kept}/out 2>{kept}/err && exit 99 || echo $? >{kept}/code
        cp -r {disk}/run {kept}/full
        mount -o remount,size=20m {disk}
        env PATH=/nonexistent {ATTUNE} evolve --resume {disk}/run >{kept}/out2 2>{kept}/err2 || true
        cp -r {disk}/run {kept}/whole
    """
    result = attune("evolve", *SMALL, "--run", disk / "run", prefix=in_a_mount(script))
    assert result.returncode == 0, result.stderr
    assert (kept / "code").read_text() == "1\n"
    said = (kept / "err").read_text()
    assert "the disk is full" in said or "no space is left" in said
    before = rows(kept / "full")
    assert 0 < len(before) < COUNT
    assert query(kept / "full", "PRAGMA integrity_check") == [("ok",)]
    check_finished(kept / "whole", before)


def test_a_disk_too_full_to_compile_is_no_verdict(mounts, tmp_path):
    disk, kept, tools = tmp_path / "disk", tmp_path / "kept", tmp_path / "tools"
    for folder in (disk, kept, tools):
        folder.mkdir()
    # A compiler that finds every header and cannot write its object.
    (tools / "c++").write_text(
        '#!/bin/sh\ncase "$*" in *--version*) echo "fake 1.0" ;; *-E*) ;;\n'
        '*) echo "fatal error: error writing to x.s: No space left on device" >&2; exit 1 ;; esac\n'
    )
    (tools / "c++").chmod(0o755)
    script = f"""
        mount -t tmpfs -o size=3m none {disk}
        env PATH={tools} {ATTUNE} "$@" >{kept}/out 2>{kept}/err && exit 99 || echo $? >{kept}/code
        cp -r {disk}/run {kept}/run
    """
    tiles = ["--compile-tiles", "--budget", "500ev"]
    args = ["--shape", "1x1x32x16", *tiles, "--run", disk / "run"]
    result = subprocess.run(
        [*in_a_mount(script), "evolve", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert (kept / "code").read_text() == "1\n"
    said = (kept / "err").read_text()
    assert "--compile-tiles: a winner whose register tile is not in the library" in said
    assert f"cannot write in {disk}/run/scratch: no space is left there" in said
    assert "best so far: " in said
    records = [json.loads(text) for _, text in rows(kept / "run")]
    assert records
    assert all(r["evaluation"]["verdict"] != "compile_failed" for r in records)
    assert (kept / "run" / "best" / "best_program.cpp").exists()
    assert not (kept / "run" / "scratch").exists()


def test_a_folder_that_is_read_only(mounts, tmp_path):
    folder = tmp_path / "run"
    assert is_done(attune("evolve", "--shape", "1x1x8x8", "--budget", "2ev", "--run", folder))
    script = f'mount --bind {tmp_path} {tmp_path}; mount -o remount,bind,ro {tmp_path}; exec "$@"'
    read_only = in_a_mount(script)
    looked = attune("evolve", "--replay", folder, prefix=read_only)
    assert looked.returncode == 0, looked.stderr
    for command in (["report"], ["evolve", "--resume"]):
        result = attune(*command, folder, prefix=read_only)
        assert result.returncode == 1
        assert f"cannot write {folder}/" in result.stderr
        assert "Read-only file system" in result.stderr
    result = attune("evolve", *SMALL, "--run", tmp_path / "other", prefix=read_only)
    assert result.returncode == 1
    assert str(tmp_path / "other") in result.stderr
    assert "Read-only file system" in result.stderr
