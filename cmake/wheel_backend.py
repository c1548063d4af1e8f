"""What pip calls to make a wheel: scikit-build-core, and then what can only be said of a finished
wheel: its bill of materials, and the oldest system that its files run on."""

import base64
import hashlib
import json
import platform
import re
import sys
import tempfile
import zipfile
from pathlib import Path

import scikit_build_core
from elf import Elf
from scikit_build_core import build as backend
from scikit_build_core.build import (  # noqa: F401
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

COMPONENTS = "attune/components.json"  # by CMake, of what it linked; not for the installed package
# Libraries that every Linux with glibc has; torch's is in the process that loads its ops.
SYSTEM = r"lib(c|m|dl|pthread|rt|gcc_s|stdc\+\+)\.so\.\d|ld-linux-[\w-]+\.so\.\d"
TORCH = "libtorch_cpu.so"
# The newest symbols of libstdc++ that the platform tags allow: (GLIBCXX, glibc).
STDCXX = [
    ((3, 4, 24), (2, 28)),
    ((3, 4, 28), (2, 31)),
    ((3, 4, 29), (2, 34)),
    ((3, 4, 30), (2, 35)),
]
STDCXX += [((3, 4, 33), (2, 39))]


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    keep_compiled(Path((config_settings or {}).get("build-dir", "build-wheel")))
    say("compiling the library and the tool: some minutes the first time, seconds when repeated")
    name = backend.build_wheel(wheel_directory, config_settings, metadata_directory)
    wheel = finish(Path(wheel_directory) / name)
    if not any(file.endswith("_torch_ops.so") for file in zipfile.ZipFile(wheel).namelist()):
        say(
            "this wheel has no torch ops: NumPy arrays and DLPack work, torch tensors do not. For "
            "those: pip install torch (2.10 or later), then install Attune again"
        )
    return wheel.name


def keep_compiled(build):
    """pip makes an environment with another path every time, and for that scikit-build-core throws
    compiled files away. CMake knows itself what they depend on; unless it was in that environment
    and is gone, they stay."""
    try:
        facts = json.loads((build / ".skbuild-info.json").read_text())
        cmake = re.search("CMAKE_COMMAND:INTERNAL=(.*)", (build / "CMakeCache.txt").read_text())
    except (OSError, ValueError):
        return
    if cmake and Path(cmake[1]).exists():
        facts["skbuild_path"] = str(Path(scikit_build_core.__file__).parent.resolve())
        (build / ".skbuild-info.json").write_text(json.dumps(facts))


def say(text):
    print(f"attune: {text}", file=sys.stderr, flush=True)


def finish(path):
    """Rewrites the wheel; returns its new path."""
    files = {}
    with zipfile.ZipFile(path) as old:
        for entry in old.infolist():
            files[entry.filename] = (entry, old.read(entry))
    record = next(name for name in files if name.endswith(".dist-info/RECORD"))
    folder = record.rsplit("/", 1)[0]
    like = files.pop(record)[0]
    components = json.loads(files.pop(COMPONENTS)[1])
    binaries = elf_files(files)
    tag = None if foreign(binaries) else platform_tag(binaries.values())
    if tag:
        entry, text = files[f"{folder}/WHEEL"]
        files[f"{folder}/WHEEL"] = (entry, re.sub(rb"-linux_\w+", b"-" + tag.encode(), text))
    bill, data = f"{folder}/sboms/attune.cdx.json", bill_of_materials(path, components, files)
    files[bill] = (entry_like(like, bill), data)
    lines = [f"{name},sha256={digest(data)},{len(data)}" for name, (_, data) in files.items()]
    listed = "\n".join([*lines, f"{record},,", ""]).encode()
    files[record] = (entry_like(like, record), listed)
    new = path.with_name(
        re.sub(r"-linux_\w+(?=\.whl$)", f"-{tag}", path.name) if tag else path.name
    )
    path.unlink()
    with zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as wheel:
        for entry, data in files.values():
            entry.date_time = (1980, 1, 1, 0, 0, 0)  # the same files give the same wheel
            wheel.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return new


def entry_like(other, name):
    entry = zipfile.ZipInfo(name, other.date_time)
    entry.external_attr = other.external_attr
    return entry


def digest(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def elf_files(files):
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (_, data) in files.items():
            if data.startswith(b"\x7fELF"):
                path = Path(folder) / "file"
                path.write_bytes(data)
                found[name] = Elf(path)
    return found


def foreign(binaries):
    """Libraries that the files need, and neither the wheel nor every system has."""
    needed = {library for elf in binaries.values() for library in elf.needed()}
    carried = {name.rsplit("/", 1)[1] for name in binaries}
    return sorted(
        library for library in needed - carried - {TORCH} if not re.fullmatch(SYSTEM, library)
    )


def numbers(version):
    return tuple(int(part) for part in re.findall(r"\d+", version))


def platform_tag(binaries, here=None):
    """manylinux_X_Y_machine by the symbols that the files import; None where that cannot be said,
    or would not fit the system that built them."""
    versions = [name for elf in binaries for names in elf.versions().values() for name in names]
    glibc = [numbers(name) for name in versions if re.fullmatch(r"GLIBC_[\d.]+", name)]
    stdcxx = [numbers(name) for name in versions if re.fullmatch(r"GLIBCXX_[\d.]+", name)]
    newest = max(stdcxx, default=(0,))
    fitting = [system for limit, system in STDCXX if newest <= limit]
    here = here or numbers(platform.libc_ver()[1])
    if not glibc or not fitting or not here:
        return None
    oldest = max(max(glibc)[:2], fitting[0])
    return f"manylinux_{oldest[0]}_{oldest[1]}_{platform.machine()}" if oldest <= here else None


def bill_of_materials(wheel, components, files):
    """CycloneDX: the libraries in the wheel's files, and the files themselves with their hashes. No
    date and no random number: the same wheel has the same bill."""
    name, version = wheel.name.split("-")[:2]
    main = f"pkg:pypi/{name}@{version}"
    parts = [
        {
            "type": "library",
            "bom-ref": f"pkg:generic/{c['name']}@{c['version']}",
            "name": c["name"],
            "version": c["version"],
            "licenses": [{"expression": c["license"]}],
            "purl": f"pkg:generic/{c['name']}@{c['version']}",
            "properties": [{"name": "attune:in", "value": " ".join(c["in"])}],
        }
        for c in components
    ]
    for file, elf in elf_files(files).items():
        sha = hashlib.sha256(files[file][1]).hexdigest()
        needs = " ".join(elf.needed())
        parts.append(
            {
                "type": "file",
                "bom-ref": f"file:{file}",
                "name": file,
                "hashes": [{"alg": "SHA-256", "content": sha}],
                "properties": [{"name": "attune:needed", "value": needs}],
            }
        )
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": main,
                "name": name,
                "version": version,
                "licenses": [{"expression": "MIT"}],
                "purl": main,
            }
        },
        "components": parts,
        "dependencies": [{"ref": main, "dependsOn": [part["bom-ref"] for part in parts]}],
    }
    return (json.dumps(bill, indent=1) + "\n").encode()
