"""The installed package, moved elsewhere, serves a project that knows nothing of this tree."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
OUTSIDE = Path(__file__).resolve().parent / "outside"


def run(*command, **options):
    result = subprocess.run(
        [str(c) for c in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}"
    return result.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    folder = tmp_path_factory.mktemp("package")
    run("cmake", "--install", BUILD, "--prefix", folder / "first")
    (folder / "first").rename(folder / "moved")
    return folder / "moved"


def library(prefix):
    (found,) = prefix.glob("lib*/**/libattune.so")
    return found


def assert_resolved(program):
    lines = run("ldd", program)
    assert "not found" not in lines, lines
    return lines


def test_find_package_builds_and_runs(prefix, tmp_path):
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    run("cmake", "-S", OUTSIDE, "-B", tmp_path, *generator, f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tmp_path)
    for program in ("use_cpp", "use_c"):
        assert str(prefix) in assert_resolved(tmp_path / program)
        assert "worst error" in run(tmp_path / program)


@pytest.mark.skipif(not shutil.which("pkg-config"), reason="no pkg-config here")
def test_pkg_config_builds_and_runs(prefix, tmp_path):
    folder = library(prefix).parent
    path = {"PKG_CONFIG_PATH": str(folder / "pkgconfig")}
    flags = run("pkg-config", "--cflags", "--libs", "attune", env={**os.environ, **path}).split()
    program = tmp_path / "use_c"
    run("cc", OUTSIDE / "use_c.c", "-o", program, *flags, "-lm", f"-Wl,-rpath,{folder}")
    assert "worst error" in run(program)


def test_installed_tool_runs(prefix):
    assert_resolved(prefix / "bin" / "attune")
    run(prefix / "bin" / "attune", "--help")


def test_nothing_installed_names_the_source_tree(prefix):
    for file in prefix.rglob("*"):
        if file.is_file():
            assert str(ROOT).encode() not in file.read_bytes(), file


def test_library_shows_the_c_abi_alone(prefix):
    symbols = [
        line.split() for line in run("nm", "-D", "--defined-only", library(prefix)).splitlines()
    ]
    names = {fields[2].split("@")[0] for fields in symbols if fields[1] != "A"}
    header = (ROOT / "include/attune/attune.h").read_text()
    assert names, "no symbol at all"
    assert all(name.startswith("attune_") and name in header for name in names), sorted(names)


def test_soname_is_the_abi_version(prefix):
    header = (ROOT / "include/attune/attune.h").read_text()
    abi = header.split("#define ATTUNE_ABI_VERSION ")[1].split()[0]
    assert f"[libattune.so.{abi}]" in run("readelf", "-d", library(prefix))
    assert f"ATTUNE_{abi} {{" in (ROOT / "cmake/exports.map").read_text()
