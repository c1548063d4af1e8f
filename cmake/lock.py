"""Writes requirements.txt: what requirements.in and torch ask for, at exact versions, with the
hashes of the files for Python 3.11 on x86-64 and aarch64. In requirements-nvrtc.txt it keeps the
version and writes the hashes. Run it by that Python, on x86-64:

    python3.11 cmake/lock.py torch==2.13.0     # the version that ./x installs
"""

import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GLIBC = ["2_17", "2_24", "2_26", "2_27", "2_28", "2_31", "2_34", "2_35", "2_36"]
HEAD = """\
# Written by cmake/lock.py from requirements.in; see there. Not to be edited.
# torch is not in it: its file differs between machines with and without a GPU.
"""


def resolve(*arguments):
    """{name: (version, sha256)} of what pip would install."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run"]
        command += ["--ignore-installed", "--only-binary=:all:", f"--report={report}", *arguments]
        subprocess.run(command, check=True)
        packages = json.loads(report.read_text())["install"]
    return {
        p["metadata"]["name"].lower().replace("_", "-"): (
            p["metadata"]["version"],
            p["download_info"]["archive_info"]["hashes"]["sha256"],
        )
        for p in packages
    }


def lines_of(pinned):
    """name==version with both hashes, of {name: (version, sha256 on x86-64)}."""
    other = ["--no-deps", "--python-version=3.11", "--target=unused"]  # a dry run: nothing is made
    other += [f"--platform=manylinux_{glibc}_aarch64" for glibc in reversed(GLIBC)]
    other += ["--platform=manylinux2014_aarch64"]
    arm64 = resolve(*other, *(f"{name}=={version}" for name, (version, _) in pinned.items()))
    text = ""
    for name, (version, digest) in sorted(pinned.items()):
        digests = sorted({digest, arm64[name][1]})
        hashes = " \\\n".join(f"    --hash=sha256:{d}" for d in digests)
        text += f"{name}=={version} \\\n{hashes}\n"
    return text


def main():
    if sys.version_info[:2] != (3, 11) or platform.machine() != "x86_64" or len(sys.argv) != 2:
        sys.exit(__doc__)
    pinned = resolve(sys.argv[1], "-r", str(ROOT / "requirements.in"))
    pinned.pop("torch")
    (ROOT / "requirements.txt").write_text(HEAD + lines_of(pinned))
    nvrtc = ROOT / "requirements-nvrtc.txt"
    lines = nvrtc.read_text().splitlines(keepends=True)
    head = "".join(line for line in lines if line.startswith("#"))
    (version,) = (line.split()[0] for line in lines if "==" in line)
    nvrtc.write_text(head + lines_of(resolve("--no-deps", version)))


if __name__ == "__main__":
    main()
