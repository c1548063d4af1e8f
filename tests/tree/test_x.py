"""./x: where it builds, and what it gives pip."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

CMAKE = """
cmake_minimum_required(VERSION 3.25)
project(small NONE)
add_custom_target(product COMMAND ${CMAKE_COMMAND} -E touch ${PROJECT_BINARY_DIR}/made)
"""
PRESETS = """
{"version": 6, "configurePresets": [
  {"name": "release", "generator": "Ninja", "binaryDir": "${sourceDir}/build"}]}
"""


def x(tree, *arguments, **environment):
    done = subprocess.run(
        [tree / "x", *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


def test_a_copied_tree_builds_in_itself(tmp_path):
    first, copy = tmp_path / "first", tmp_path / "copy"
    first.mkdir()
    shutil.copy(ROOT / "x", first)
    (first / "CMakeLists.txt").write_text(CMAKE)
    (first / "CMakePresets.json").write_text(PRESETS)
    x(first, "build")
    shutil.copytree(first, copy)
    for tree in (first, copy):
        (tree / "build/made").unlink()
    assert "another folder" in x(copy, "build")
    assert (copy / "build/made").exists() and not (first / "build/made").exists()
    assert "another folder" not in x(copy, "build")


def pinned(file="requirements.txt"):
    """{name: (version, hashes)}"""
    found = {}
    lines = (ROOT / file).read_text().replace("\\\n", " ").splitlines()
    for line in lines:
        if line and not line.startswith("#"):
            name, version = re.match(r"([a-z0-9-]+)==(\S+) ", line).groups()
            found[name] = (version, re.findall(r"--hash=sha256:[0-9a-f]{64}\b", line))
            assert re.sub(r"\s+--hash=sha256:\S+", "", line).strip() == f"{name}=={version}"
    return found


def test_every_package_is_pinned_with_hashes():
    packages = pinned()
    assert "torch" not in packages
    assert all(hashes for _, hashes in packages.values())
    wanted = [w for w in (ROOT / "requirements.in").read_text().splitlines() if w[0] != "#"]
    assert len(wanted) > 5
    for line in wanted:
        name, _, version = line.partition("==")
        assert packages[name][0] == version or not version, line
    (nvrtc,) = pinned("requirements-nvrtc.txt").items()
    assert nvrtc[0] == "nvidia-cuda-nvrtc" and len(nvrtc[1][1]) == 2


FAKE = """#!/bin/sh
echo "$*" >>"$LOG"
case "$*" in
  "-m venv .venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
  *" torch numpy "*) exit 1 ;;
  *platform*) echo "$MACHINE" ;;
esac
"""


def fake_tree(tmp_path):
    """A tree with ./x, and the PATH of a Python and an apt-get that only write their arguments."""
    tree, programs = tmp_path / "tree", tmp_path / "bin"
    tree.mkdir()
    programs.mkdir()
    for name in ("x", "requirements.in", "requirements.txt", "requirements-nvrtc.txt"):
        shutil.copy(ROOT / name, tree)
    for name in ("python3", "clang-format", "apt-get"):
        (programs / name).write_text(FAKE)
        (programs / name).chmod(0o755)
    return tree, f"{programs}:{os.environ['PATH']}"


@pytest.mark.parametrize("machine, checked", [("x86_64 3 11", True), ("x86_64 3 13", False)])
def test_pip_is_given_the_pins(tmp_path, machine, checked):
    (tree, path), log = fake_tree(tmp_path), tmp_path / "log"
    said = x(tree, "fmt", "--check", PATH=path, LOG=str(log), MACHINE=machine)
    installs = [line for line in log.read_text().splitlines() if "pip install" in line]
    assert len(installs) == 2 and re.search(r" torch==[\d.]+$", installs[1])
    assert ("--require-hashes" in installs[0]) == checked
    assert installs[0].endswith("-r requirements.txt" if checked else "-r requirements.in")
    assert ("no hashes for" in said) != checked
    if not checked:
        versions = (tree / ".venv/versions.txt").read_text().splitlines()
        assert versions == [f"{name}=={version}" for name, (version, _) in pinned().items()]
    # A second time there is nothing to do, until the file changes.
    log.unlink()
    x(tree, "fmt", "--check", PATH=path, LOG=str(log), MACHINE=machine)
    assert "pip install" not in log.read_text()
    (tree / "requirements.txt").open("a").write("# changed\n")
    x(tree, "fmt", "--check", PATH=path, LOG=str(log), MACHINE=machine)
    assert "pip install" in log.read_text()


def test_nvrtc_is_installed_by_its_hash(tmp_path):
    (tree, path), log = fake_tree(tmp_path), tmp_path / "log"
    # The packages of the build are taken as there, and NVRTC as not there.
    script = (tree / "x").read_text()
    assert "has_nvrtc() {" in script and "\njob=${1:-help}" in script
    without = "is_there() { true; }\nhas_nvrtc() { false; }\n\njob=${1:-help}"
    (tree / "x").write_text(script.replace("\njob=${1:-help}", without, 1))
    x(tree, "setup", PATH=path, LOG=str(log), MACHINE="x86_64 3 11")
    (install,) = [line for line in log.read_text().splitlines() if "nvrtc" in line]
    assert "--require-hashes" in install and install.endswith("-r requirements-nvrtc.txt")


def test_the_full_tier_fuzzes_every_target_for_a_minute():
    script, driver = (ROOT / "x").read_text(), (ROOT / "tests/fuzz/driver.cpp").read_text()
    targets = re.findall(r'^      \{"([a-z-]+)",$', driver, re.M)
    rows = re.search(r"for row in (.*); do", script)[1]
    seconds = dict(re.findall(r"([a-z-]+)=(\d+)", rows))
    assert seconds == dict.fromkeys(targets, "60") and len(targets) >= 4
    # The documents list the same.
    text = (ROOT / "docs/debugging.md").read_text().split("## Fuzzing")[1]
    assert re.findall(r"^\| `([a-z-]+)` \|", text, re.M) == targets


@pytest.mark.parametrize(
    "gpu, nvcc, arguments, program",
    [
        (True, True, [], "cuda_attention/naive.cu"),
        (False, True, [], "cpu_attention/naive.cpp"),
        (True, False, [], "cpu_attention/naive.cpp"),
        (True, True, ["mine.cpp", "--budget", "5m"], "mine.cpp --budget 5m"),
    ],
)
def test_evolve_takes_the_program_of_the_device(tmp_path, gpu, nvcc, arguments, program):
    (tree, path), log = fake_tree(tmp_path), tmp_path / "log"
    names = ["build/attune", *(["../bin/nvcc"] if nvcc else [])]
    (tree / "build").mkdir()
    for name in names:
        (tree / name).write_text(FAKE)
        (tree / name).chmod(0o755)
    # The build is taken as done, and the device as there or not there.
    script = (tree / "x").read_text()
    assert "\nhas_gpu() {" in script and "\njob_build() {" in script
    instead = f"job_build() {{ true; }}\nhas_gpu() {{ {str(gpu).lower()}; }}\n"
    if not nvcc:  # this machine may have one
        assert "\nhas_nvcc() {" in script
        instead += "has_nvcc() { false; }\n"
    instead += "\njob=${1:-help}"
    (tree / "x").write_text(script.replace("\njob=${1:-help}", "\n" + instead, 1))
    x(tree, "evolve", *arguments, PATH=path, LOG=str(log))
    (asked,) = log.read_text().splitlines()
    assert asked.startswith("evolve ") and program in asked
    catalogue = "--with examples/" + program.split("/")[0] + "/catalogue"
    assert (catalogue in asked) == (not arguments)
