"""The installed package, moved elsewhere, serves a project that knows nothing of this tree."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "cmake"))
from elf import SHARED, Elf, is_elf  # noqa: E402

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


def elf_files(folder):
    """Programs and libraries in a folder, without links and object files."""
    files = [f for f in folder.rglob("*") if f.is_file() and not f.is_symlink() and is_elf(f)]
    return {str(f.relative_to(folder)): Elf(f) for f in files if Elf(f).type == SHARED}


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


# The loader takes an empty element, and relative ones from there, as the current folder.
@pytest.mark.parametrize("where", ["build", "prefix"])
def test_run_paths_start_at_the_file(where, prefix):
    files = elf_files(BUILD if where == "build" else prefix)
    assert {Path(name).name.split(".so")[0] for name in files} >= {"libattune", "attune"}
    for name, elf in files.items():
        assert all(e == "$ORIGIN" or e.startswith("$ORIGIN/") for e in elf.run_paths()), name


def test_installed_files_are_hardened(prefix):
    files = elf_files(prefix)
    assert len(files) >= 2
    for name, elf in files.items():
        assert elf.has_relro() and elf.binds_now() and not elf.has_executable_stack(), name
        symbols = set(elf.symbols())
        assert "__stack_chk_fail" in symbols, name
        assert any(symbol.endswith("_chk") for symbol in symbols), name  # _FORTIFY_SOURCE


def test_the_wheels_files_stay_out_of_a_prefix(prefix):
    entries = {entry.name for entry in prefix.iterdir()}
    assert entries <= {"bin", "include", "lib", "lib64", "share"}
    assert not list(prefix.rglob("_torch_ops*")) and not list(prefix.rglob("components.json"))


def test_notices_are_installed(prefix):
    for name in ("LICENSE", "THIRD_PARTY_NOTICES"):
        (file,) = prefix.glob(f"share/doc/*/{name}")
        assert file.read_text() == (ROOT / name).read_text()
    notices = (ROOT / "THIRD_PARTY_NOTICES").read_text()
    for name in ("Highway", "fmt", "nlohmann-json", "CLI11", "SQLite", "PyTorch", "Apache License"):
        assert name in notices
