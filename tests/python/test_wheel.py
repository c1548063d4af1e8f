"""A wheel, built from this tree, in an empty environment."""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.full
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "cmake"))
from elf import Elf, is_elf  # noqa: E402

GLIBC = (2, 36)  # what docs/python.md promises: Debian 12's
EXAMPLE = """
import numpy as np, attune
x = np.random.default_rng(0).standard_normal((1, 2, 9, 16)).astype(np.float32)
out = attune.attention(x, x, x, is_causal=True)
assert np.abs(out[0, 0, 0] - x[0, 0, 0]).max() < 1e-6
print(attune.__version__, attune.info()["torch"])
"""


def run(*command, **options):
    environment = {
        k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "ATTUNE_BUILD_DIR")
    }
    environment.update(options.pop("env", {}))
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    done = subprocess.run(list(map(str, command)), text=True, env=environment, **options)
    assert done.returncode == 0, done.stdout + (done.stderr or "")
    return done.stdout


def build(folder, wheels):
    # By its long name: Debian 12's pip does not know -C yet. Compiler and warnings as in build/
    # and a folder as deep in the tree: the compiler cache then has what was compiled there.
    values = [f"build-dir={folder}", "cmake.define.CMAKE_COMPILE_WARNING_AS_ERROR=ON"]
    settings = [f"--config-settings={value}" for value in values]
    pip = [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation"]
    options = {"env": {"CC": "cc", "CXX": "c++"}, "stderr": subprocess.STDOUT}
    return run(*pip, *settings, "-w", wheels, ROOT, **options)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The wheel, what pip said, and the build folder."""
    pytest.importorskip("scikit_build_core")
    folder = tmp_path_factory.mktemp("wheel")
    shutil.rmtree(ROOT / "build-wheel-test", ignore_errors=True)
    said = build(ROOT / "build-wheel-test", folder)
    (path,) = folder.glob("attune-*.whl")
    return path, said, ROOT / "build-wheel-test"


@pytest.fixture(scope="module")
def wheel(made):
    return made[0]


@pytest.fixture(scope="module")
def unpacked(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unpacked")
    zipfile.ZipFile(wheel).extractall(folder)
    for tool in (folder / "attune/bin").iterdir():
        tool.chmod(0o755)  # as pip does; zipfile does not
    return folder


@pytest.fixture(scope="module")
def binaries(unpacked):
    files = [f for f in unpacked.rglob("*") if f.is_file() and is_elf(f)]
    return {str(f.relative_to(unpacked / "attune")): Elf(f) for f in files}


def dist_info(unpacked):
    (folder,) = unpacked.glob("*.dist-info")
    return folder


def test_what_is_in_it(wheel, unpacked, binaries):
    names = set(zipfile.ZipFile(wheel).namelist())
    for name in ("__init__.py", "py.typed", "examples/module.py"):
        assert f"attune/{name}" in names
    libraries = {"libattune.so.1", "libhwy.so.1", "_torch_ops.so"}
    assert set(binaries) == libraries | {"bin/attune", "bin/attune-program-worker"}
    assert not [n for n in names if re.search(r"cuda|nvrtc|torch_cpu|\.cpp$|components\.json", n)]
    for name, elf in binaries.items():
        versions = {v for library in elf.versions().values() for v in library}
        numbers = [re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", v) for v in versions]
        assert max((int(n[1]), int(n[2])) for n in numbers if n) <= GLIBC, name


def test_the_record_is_right(unpacked):
    record = dist_info(unpacked) / "RECORD"
    listed = {}
    for line in record.read_text().splitlines():
        name, digest, size = line.rsplit(",", 2)
        listed[name] = (digest, size)
    files = {str(f.relative_to(unpacked)): f for f in unpacked.rglob("*") if f.is_file()}
    assert set(listed) == set(files)
    for name, file in files.items():
        if file != record:
            digest = base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest())
            right = ("sha256=" + digest.decode().rstrip("="), str(file.stat().st_size))
            assert listed[name] == right, name


def test_run_paths_start_at_the_file(binaries):
    for name, elf in binaries.items():
        assert all(re.fullmatch(r"\$ORIGIN(/.*)?", e) for e in elf.run_paths()), name


def test_it_is_hardened(binaries):
    for name, elf in binaries.items():
        assert elf.has_relro() and elf.binds_now() and not elf.has_executable_stack(), name
        assert "__stack_chk_fail" in set(elf.symbols()), name


def test_it_needs_nothing_but_the_c_and_cxx_libraries(binaries):
    system = r"lib(c|m|gcc_s|stdc\+\+)\.so\.\d|ld-linux-[\w-]+\.so\.\d"
    for name, elf in binaries.items():
        rest = {n for n in elf.needed() if not re.fullmatch(system, n)} - set(binaries)
        # torch's library is in the process already when its ops are loaded.
        assert rest == ({"libtorch_cpu.so"} if name == "_torch_ops.so" else set()), name


def test_the_tag_says_which_glibc(wheel, unpacked, binaries):
    tag = re.search(r"-py3-none-(manylinux_(\d+)_(\d+)_\w+)\.whl$", wheel.name)
    assert tag and (int(tag[2]), int(tag[3])) <= GLIBC
    assert f"Tag: py3-none-{tag[1]}\n" in (dist_info(unpacked) / "WHEEL").read_text()


def test_notices_travel_along(unpacked):
    licenses = dist_info(unpacked) / "licenses"
    assert (licenses / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    notices = (licenses / "THIRD_PARTY_NOTICES").read_text()
    # Each part: a line of =, the name with its licence, the files that have it.
    parts = re.findall(r"^=+\n(.+) \(.*\)\n(.*)\n=+$", notices, re.M)
    files = {title: set(re.findall(r"[\w-]*attune[\w-]*|lib\w+|_\w+", at)) for title, at in parts}
    libraries = [c for c in bill(unpacked)["components"] if c["type"] == "library"]
    assert len(parts) == len(libraries)
    for component in libraries:
        name = component["name"].removesuffix("-headers").replace("-", ".?")
        (title,) = (title for title in files if re.search(name, title, re.I))
        (found,) = (p["value"] for p in component["properties"] if p["name"] == "attune:in")
        assert files[title] == {Path(f).name.split(".")[0] for f in found.split()}, title


def bill(unpacked):
    return json.loads((dist_info(unpacked) / "sboms/attune.cdx.json").read_text())


def test_the_bill_of_materials_is_of_these_files(unpacked, binaries):
    text = bill(unpacked)
    assert (text["bomFormat"], text["specVersion"]) == ("CycloneDX", "1.5")
    libraries = {c["name"]: c for c in text["components"] if c["type"] == "library"}
    names = ["cli11", "fmt", "highway", "nlohmann-json", "pytorch-headers", "sqlite", "yaml-cpp"]
    assert sorted(libraries) == names
    assert all(re.fullmatch(r"\d+(\.\d+)+", c["version"]) for c in libraries.values())
    tool = (unpacked / "attune/bin/attune").read_bytes()
    assert libraries["sqlite"]["version"].encode() in tool
    files = {c["name"]: c for c in text["components"] if c["type"] == "file"}
    assert set(files) == {f"attune/{name}" for name in binaries}
    for name, file in files.items():
        assert file["hashes"][0]["content"] == (
            hashlib.sha256((unpacked / name).read_bytes()).hexdigest()
        )
    references = [c["bom-ref"] for c in text["components"]]
    assert sorted(text["dependencies"][0]["dependsOn"]) == sorted(set(references))


def test_pip_shows_what_happens(made):
    assert re.search(r"\[\d+/\d+\] (Building|Linking) CXX", made[1])


def test_a_second_build_compiles_nothing(made, tmp_path):
    folder = made[2]
    before = {f: f.stat().st_mtime_ns for f in folder.rglob("*.o")}
    assert len(before) > 50
    info = folder / ".skbuild-info.json"  # as after a build in another of pip's environments
    info.write_text(json.dumps(json.loads(info.read_text()) | {"skbuild_path": "/nowhere"}))
    build(folder, tmp_path)
    assert {f: f.stat().st_mtime_ns for f in folder.rglob("*.o")} == before
    (again,) = tmp_path.glob("*.whl")
    assert again.name == made[0].name
    assert again.read_bytes() == made[0].read_bytes()


def test_a_warning_does_not_stop_an_installation(tmp_path):
    tomllib = pytest.importorskip("tomllib")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["scikit-build"]
    options = [f"-D{name}={value}" for name, value in settings["cmake"]["define"].items()]
    run("cmake", "-S", ROOT, "-B", tmp_path, "-G", "Ninja", *options)
    commands = (tmp_path / "compile_commands.json").read_text()
    assert "-Wall" in commands and "-Werror" not in commands


def test_without_the_systems_highway(unpacked, tmp_path):
    """In a mount namespace where the system's libhwy is no library."""
    np = pytest.importorskip("numpy")
    libraries = [f.resolve() for f in Path("/usr/lib").glob("*/libhwy.so.1")]
    if not shutil.which("unshare"):
        pytest.skip("no unshare here")
    empty = tmp_path / "empty"
    empty.touch()
    hide = " && ".join(f"mount --bind {empty} {library}" for library in libraries) or "true"
    namespace = ["unshare", "--mount"] + ([] if os.geteuid() == 0 else ["--map-root-user"])
    if subprocess.run([*namespace, "sh", "-c", hide], capture_output=True).returncode != 0:
        pytest.skip("mount namespaces are not permitted here")
    numpy_folder = Path(np.__file__).parents[1]
    code = f"import sys; sys.path.append({str(numpy_folder)!r})\n" + EXAMPLE
    for program in (
        [sys.executable, "-S", "-c", code],
        [unpacked / "attune/bin/attune", "info"],
    ):
        command = f'{hide} && exec "$@"'
        environment = {"PYTHONPATH": str(unpacked)}
        run(*namespace, "sh", "-c", command, "sh", *program, cwd=tmp_path, env=environment)


def test_without_torch(wheel, tmp_path):
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", wheel)
    assert "'usable': False" in run(python, "-c", EXAMPLE, cwd=tmp_path)
    code = "import attune; attune.flash_attn_func"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode != 0 and "torch" in done.stderr


def test_with_torch(wheel, tmp_path):
    pytest.importorskip("torch")
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", tmp_path, wheel)
    code = (
        EXAMPLE + "import torch; attune.scaled_dot_product_attention(*torch.ones(3, 1, 2, 9, 16))"
    )
    assert "'usable': True" in run(
        sys.executable, "-c", code, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}
    )
