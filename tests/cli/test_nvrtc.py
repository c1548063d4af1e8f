"""Which NVRTC the tool takes: none that the current folder holds, or a caller with fewer rights
names."""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ATTUNE = Path(os.environ.get("ATTUNE_BIN", ROOT / "build" / "attune")).resolve()


def make_nvrtc(folder, version):
    """Files that look like NVRTC, and are not: nothing may load them to find out."""
    folder.mkdir(parents=True)
    head = ATTUNE.read_bytes()[:64]
    (folder / f"libnvrtc.so.{version.split('.')[0]}").write_bytes(head)
    (folder / f"libnvrtc-builtins.so.{version}").write_bytes(head)
    return folder


def info(command, **options):
    done = subprocess.run(
        [*command, "info", "--json"], capture_output=True, text=True, timeout=60, **options
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_info_says_where_it_was_found(tmp_path):
    named = make_nvrtc(tmp_path / "named", "13.7")
    facts = info([ATTUNE], env=os.environ | {"ATTUNE_NVRTC": str(named)})["backends"][1]["nvrtc"]
    assert (facts["version"], facts["place"]) == ("13.7", "ATTUNE_NVRTC")
    text = subprocess.run([ATTUNE, "info"], capture_output=True, text=True).stdout
    found = info([ATTUNE])["backends"][1]["nvrtc"]
    assert found["why"] or (found["place"] and f"place: {found['place']}" in text)


def test_the_current_folder_is_no_place(tmp_path):
    # Called by its bare name, the tool could take the current folder for its own.
    make_nvrtc(tmp_path / ".venv/lib/python3.11/site-packages/nvidia/cu13/lib", "13.99")
    build = tmp_path / "build"
    make_nvrtc(build / "nvrtc", "13.99")
    make_nvrtc(build / ".venv/lib/python3.11/site-packages/nvidia/cu13/lib", "13.99")
    (build / "CMakeCache.txt").touch()
    environment = os.environ | {"PATH": f"{ATTUNE.parent}:{os.environ['PATH']}"}
    for folder in (tmp_path, build):
        facts = info([ATTUNE.name], cwd=folder, env=environment)["backends"][1]["nvrtc"]
        assert facts["version"] != "13.99" and not facts["path"].startswith(str(tmp_path))


LOADED = """
#include <fcntl.h>
#include <stdlib.h>
__attribute__((constructor)) static void say(void) { creat(getenv("LOADED"), 0600); }
"""


@pytest.mark.parametrize("variable", [":/nowhere", "/nowhere:", "/nowhere::/none", ".", "below"])
def test_the_loader_is_not_asked_where_it_looks_in_the_current_folder(tmp_path, variable):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    alone, here, said = (tmp_path / name for name in ("alone", "here", "loaded"))
    alone.mkdir()
    (here / "below").mkdir(parents=True)
    tool = alone / "attune"  # not in a build, beside which there may be a .venv
    shutil.copy(ATTUNE, tool)
    environment = {"HOME": str(alone), "PATH": str(alone), "LOADED": str(said)}
    if info([tool], cwd=alone, env=environment)["backends"][1]["nvrtc"]["version"]:
        pytest.skip("the system has an NVRTC, which comes first")
    target = (here / "below" if variable == "below" else here) / "libnvrtc.so.13"
    build = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", target]
    subprocess.run(build, input=LOADED, text=True, check=True)
    environment["LD_LIBRARY_PATH"] = variable
    facts = info([tool], cwd=here, env=environment)["backends"][1]["nvrtc"]
    assert not said.exists()
    assert facts["version"] == "" and "would look in the current folder" in facts["why"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a program that runs as root")
@pytest.mark.skipif(not shutil.which("setpriv"), reason="no setpriv here")
def test_a_program_with_more_rights_is_not_steered():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        tool = folder / "attune"
        shutil.copy(ATTUNE, tool)
        tool.chmod(0o4755)
        if os.statvfs(folder).f_flag & os.ST_NOSUID:
            pytest.skip("set-user-ID programs do not work in this folder")
        named = make_nvrtc(folder / "named", "13.7")
        environment = {
            "ATTUNE_NVRTC": str(named),
            "ATTUNE_CACHE_DIR": str(folder / "cache"),
            "XDG_CACHE_HOME": str(folder),
            "HOME": str(folder),
            "PATH": os.environ["PATH"],
        }
        other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        facts = info([*other, tool], env=environment, cwd="/")
        assert facts["backends"][1]["nvrtc"]["version"] != "13.7"
        assert facts["caches"]["kernels"]["dir"] == ""
        tool.chmod(0o755)  # without those rights they count
        facts = info([*other, tool], env=environment, cwd="/")
        assert facts["backends"][1]["nvrtc"]["version"] == "13.7"
        assert facts["caches"]["kernels"]["dir"] == str(folder / "cache")


def test_the_first_call_is_split(tmp_path):
    """Without a GPU too: the driver's part is then missing."""
    if info([ATTUNE])["backends"][1]["nvrtc"]["why"]:
        pytest.skip("there is no NVRTC here")
    target = tmp_path / "cold.json"
    args = ["--shape", "1x8x512x64", "--dtype", "bf16", "--arch", "80", "--repeats", "1"]
    command = [ATTUNE, "bench", "--cold", *args, "--json", target]
    environment = os.environ | {"ATTUNE_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(target.read_text())["rows"]
    assert set(row["ms"]) == {"find", "load", "compile", "disk"} and row["arch"] == 80
    assert all(ms >= 0 for ms in row["ms"].values())
    assert row["total_ms"] == pytest.approx(sum(row["ms"].values()))
    assert row["ms"]["compile"] > 10 * row["read_ms"] > 0
    assert row["kernel"].startswith("sm80.attn_fwd.bf16.d64/mma.")
    assert "compile ms" in done.stdout and "without the driver's part" in done.stderr
    assert not (tmp_path / "cache").exists(), "the user's kernels are left alone"
    wrong = subprocess.run([ATTUNE, "bench", "--arch", "80"], capture_output=True, text=True)
    assert wrong.returncode == 2 and "--arch: it goes with --cold" in wrong.stderr
