"""attune cache: list, warm, clear; and what `info` says of CUDA, compiler and cache."""

import hashlib
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ATTUNE = Path(os.environ.get("ATTUNE_BIN", ROOT / "build" / "attune")).resolve()


@pytest.fixture
def attune(tmp_path):
    """The tool with a cache of its own."""

    def run(*args, **environment):
        env = os.environ | {"ATTUNE_CACHE_DIR": str(tmp_path / "cache")} | environment
        return subprocess.run(
            [ATTUNE, *map(str, args)], capture_output=True, text=True, timeout=300, env=env
        )

    return run


def nvrtc():
    facts = json.loads(subprocess.run([ATTUNE, "info", "--json"], capture_output=True).stdout)
    return facts["backends"][1]["nvrtc"]


needs_nvrtc = pytest.mark.skipif(nvrtc()["why"] != "", reason=nvrtc()["why"])


def test_help_teaches(attune):
    result = attune("cache", "--help")
    assert result.returncode == 0
    assert "Examples:\n  attune cache list" in result.stdout
    for line in re.findall(r"^  attune (.*)$", result.stdout.split("Examples:")[1], re.M):
        wrong = attune(*line.split(), "--no-such-option")
        assert "--no-such-option" in wrong.stderr, line


@pytest.mark.parametrize(
    "args, complaint",
    [
        (["cache"], "subcommand is required"),
        (["cache", "melt"], "melt"),
        (["cache", "warm", "--arch", "42"], "42"),
        (["cache", "warm", "--arch", "90", "--jobs", "-1"], "--jobs"),
    ],
)
def test_wrong_usage_is_exit_2(attune, args, complaint):
    result = attune(*args)
    assert result.returncode == 2
    assert complaint in result.stderr
    assert result.stdout == ""


def test_an_empty_cache(attune):
    result = attune("cache", "list", "--json", "-")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["entries"] == []
    result = attune("cache", "clear")
    assert result.returncode == 0
    assert result.stdout.startswith("0 kernels, 0 bytes removed")


def entry(id, key="ab" * 32):
    """The bytes of an entry on disk, with a checksum that is right."""
    head = {"schema": 2, "key": key, "id": id, "arch": "sm_90a", "cubin_bytes": 4}
    text = json.dumps(head).encode()
    body = b"ATTUNE-KERNEL\n" + b"%8d" % len(text) + text + b"\x7fELF"
    return body + hashlib.sha256(body).digest()


def put(folder, content, key="ab" * 32):
    folder.mkdir(mode=0o700, exist_ok=True)
    file = folder / f"{key}.kernel"
    file.write_bytes(content)
    return file


def test_control_characters_of_an_id_do_not_reach_the_terminal(attune, tmp_path):
    put(tmp_path / "cache", entry("a\x1b]0;title\x07\x7f\x9b2J\n\r\tz"))
    result = attune("cache", "list")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[1].startswith("a?]0;title??")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", result.stdout)
    listed = json.loads(attune("cache", "list", "--json", "-").stdout)
    assert listed["entries"][0]["id"] == "a\x1b]0;title\x07\x7f\x9b2J\n\r\tz"


def test_a_folder_whose_name_is_not_utf8_is_listed(tmp_path):
    folder = os.fsencode(tmp_path) + b"/\xff\x1bcache"
    os.mkdir(folder, 0o700)
    with open(folder + b"/" + b"ab" * 32 + b".kernel", "wb") as file:
        file.write(entry("an id"))
    env = os.environb | {b"ATTUNE_CACHE_DIR": folder}
    for command in (["list", "--json", "-"], ["list"], ["clear"]):
        result = subprocess.run(
            [ATTUNE, "cache", *command], capture_output=True, timeout=60, env=env
        )
        assert result.returncode == 0, result.stderr
        assert b"\x1b" not in result.stdout + result.stderr
        if "--json" in command:
            listed = json.loads(result.stdout.decode())
            assert [e["id"] for e in listed["entries"]] == ["an id"]


def test_a_fifo_is_not_waited_for(attune, tmp_path):
    put(tmp_path / "cache", entry("an id"))
    os.mkfifo(tmp_path / "cache" / ("cd" * 32 + ".kernel"))
    listed = json.loads(attune("cache", "list", "--json", "-").stdout)
    assert len(listed["entries"]) == 1


def test_a_folder_that_others_may_write_is_refused(attune, tmp_path):
    put(tmp_path / "cache", entry("an id"))
    (tmp_path / "cache").chmod(0o777)
    result = attune("cache", "list", "--json", "-")
    listed = json.loads(result.stdout)
    facts = json.loads(attune("info", "--json").stdout)["caches"]["kernels"]
    assert listed["entries"] == []
    for why in (listed["warning"], facts["warning"], result.stderr):
        assert "others may write into" in why and "chmod go-w" in why
        assert "ATTUNE_CACHE_DIR" in why
    (tmp_path / "cache").chmod(0o755)
    listed = json.loads(attune("cache", "list", "--json", "-").stdout)
    assert len(listed["entries"]) == 1 and listed["warning"] == ""


@needs_nvrtc
def test_a_refused_folder_is_neither_read_nor_written(attune, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    result = attune("cache", "warm", "--arch", 75, "--quick", "--json", "-")
    warmed = json.loads(result.stdout)
    assert (warmed["cached"], warmed["failed"]) == (0, 0)
    assert "cannot be used" in warmed["warning"] and "chmod go-w" in warmed["warning"]
    assert list((tmp_path / "cache").iterdir()) == []


def test_clear_looks_inside(attune, tmp_path):
    put(tmp_path / "cache", entry("an id"))
    mine = tmp_path / "cache" / "linux.kernel"
    mine.write_text("somebody's own")
    result = attune("cache", "clear")
    assert result.returncode == 0
    assert result.stdout.startswith("1 kernels,")
    assert "1 files are named as kernels but are none" in result.stderr
    assert list((tmp_path / "cache").iterdir()) == [mine]


def test_no_folder_at_all(attune):
    result = attune("cache", "list", ATTUNE_CACHE_DIR="", XDG_CACHE_HOME="", HOME="")
    assert result.returncode == 1
    assert "ATTUNE_CACHE_DIR" in result.stderr


@needs_nvrtc
def test_warm_list_clear(attune, tmp_path):
    first = attune("cache", "warm", "--arch", 80, "--quick", "--json", "-")
    assert first.returncode == 0, first.stderr
    warmed = json.loads(first.stdout)
    assert warmed["compiled"] > 2 and warmed["cached"] == warmed["failed"] == 0
    assert warmed["warning"] == ""
    for kernel in warmed["kernels"]:
        assert kernel["from"] == "compiler" and kernel["arch"] == "sm_80"
        assert kernel["kernels"] and all(k["registers"] > 0 for k in kernel["kernels"])

    second = json.loads(attune("cache", "warm", "--arch", 80, "--quick", "--json", "-").stdout)
    assert second["compiled"] == second["failed"] == 0
    assert second["cached"] == warmed["compiled"]

    listed = json.loads(attune("cache", "list", "--json", "-").stdout)
    assert {e["id"] for e in listed["entries"]} == {k["id"] for k in warmed["kernels"]}
    text = attune("cache", "list")
    assert text.stdout.startswith("id ")
    assert len(text.stdout.splitlines()) == 1 + len(listed["entries"])

    facts = json.loads(attune("info", "--json").stdout)["caches"]["kernels"]
    assert facts["dir"] == str(tmp_path / "cache")
    assert facts["entries"] == len(listed["entries"])
    assert facts["bytes"] == listed["bytes"]

    result = attune("cache", "clear")
    assert result.returncode == 0
    assert f"{listed['bytes']} bytes removed" in result.stdout
    assert list((tmp_path / "cache").iterdir()) == []


@needs_nvrtc
def test_a_damaged_entry_is_made_again(attune, tmp_path):
    attune("cache", "warm", "--arch", 75, "--quick")
    file = next((tmp_path / "cache").glob("*.kernel"))
    file.write_bytes(file.read_bytes()[:-1])
    again = json.loads(attune("cache", "warm", "--arch", 75, "--quick", "--json", "-").stdout)
    assert (again["compiled"], again["failed"]) == (1, 0)


@needs_nvrtc
def test_a_cache_that_cannot_be_written_is_a_warning(attune, tmp_path):
    (tmp_path / "file").write_text("")
    result = attune(
        *("cache", "warm", "--arch", 75, "--quick", "--json", "-"),
        ATTUNE_CACHE_DIR=str(tmp_path / "file" / "cache"),
    )
    assert result.returncode == 0
    assert "cannot be written" in result.stderr
    assert json.loads(result.stdout)["warning"] != ""


@needs_nvrtc
def test_dump_dir_gets_the_source(attune, tmp_path):
    dump = tmp_path / "dump"
    attune("cache", "warm", "--arch", 75, "--quick", ATTUNE_DUMP_DIR=str(dump))
    sources = list(dump.glob("*.cu"))
    assert sources
    for source in sources:
        assert '#include "ladder/' in source.read_text() or "sm80/" in source.read_text()
        assert source.with_suffix(".cubin").read_bytes().startswith(b"\x7fELF")
        assert "registers" in source.with_suffix(".log").read_text()
    for header in (ROOT / "kernels").rglob("*.*h"):
        assert (dump / "kernels" / header.relative_to(ROOT / "kernels")).exists()


def test_an_nvrtc_that_is_not_there_is_said(attune):
    facts = json.loads(attune("info", "--json", ATTUNE_NVRTC="/no/such/libnvrtc.so.13").stdout)
    cuda = facts["backends"][1]
    assert cuda["usable"] is False
    assert "ATTUNE_NVRTC is /no/such/libnvrtc.so.13" in cuda["nvrtc"]["why"]
    result = attune("cache", "warm", "--arch", 90, "--quick", ATTUNE_NVRTC="/no/such")
    assert result.returncode == 1
    assert "ATTUNE_NVRTC" in result.stderr


def test_info_warns_of_a_cache_that_cannot_be_written(attune, tmp_path):
    (tmp_path / "file").write_text("")
    facts = json.loads(attune("info", "--json", ATTUNE_CACHE_DIR=str(tmp_path / "file")).stdout)
    assert "cannot write" in facts["caches"]["kernels"]["warning"]
    assert json.loads(attune("info", "--json").stdout)["caches"]["kernels"]["warning"] == ""


def test_info_says_why_cuda_is_not_usable(attune):
    cuda = json.loads(attune("info", "--json").stdout)["backends"][1]
    assert cuda["usable"] == (cuda["why"] == "")
    if cuda["usable"]:
        assert cuda["devices"] and cuda["driver_cuda_version"]
    else:
        assert cuda["why"] in attune("info").stdout
