"""Rules for the tree as a whole: who may include whom, what a file of a kernel may be like, one
version, few environment variables."""

import ast
import ctypes
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = {".h", ".hpp", ".c", ".cpp", ".cuh", ".cu"}

# Inside src, from caller to callee; src/check looks at all of it and is used from outside only.
SRC_ORDER = ["api", "select", "jit", "rungs", "cuda", "cpu"]
LAYERS = {  # folder -> the folders of ours that it may include
    "kernels": {"kernels"},
    "include": {"include"},
    "src": {"kernels", "include", "src"},
    "evolve": {"kernels", "include", "src", "evolve"},
    "cli": {"kernels", "include", "src", "evolve", "cli"},
    "python": {"include", "python"},
}
FRAMEWORK = re.compile(r"^(torch|ATen|c10|caffe2|pybind11|nanobind)/|^Python\.h$")
STANDARD = re.compile(r"^[a-z_]+$|^(std)?(assert|ctype|def|int|limits|math|io|lib|string)\.h$")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def includes(text):
    """(bracket, name, inside an #if) of every include."""
    depth = 0
    for line in text.splitlines():
        directive = re.match(r"^\s*#\s*(if|endif)", line)
        if directive:
            depth += 1 if directive[1] == "if" else -1
        found = INCLUDE.match(line)
        if found:
            yield found[1], found[2], depth > 0


def target_of(root, file, name):
    """The file of ours that an include names, relative to the root, or None."""
    for base in (file.parent, root, root / "include"):
        path = (base / name).resolve()
        if path.is_file() and root in path.parents:
            return path.relative_to(root)
    return None


def objection(root, file, bracket, name, guarded):
    """Why this include is not allowed, or None."""
    source = file.relative_to(root)
    layer = source.parts[0]
    if layer != "python" and FRAMEWORK.search(name):
        return "framework headers stay in python/"
    target = target_of(root, file, name)
    if target is None:
        if bracket == '"':
            return "there is no such file"
        if layer == "kernels" and not (name == "stdint.h" and guarded):
            return "device code includes nothing but stdint.h, and that inside an #if"
        if layer == "include" and not STANDARD.search(name):
            return "public headers include public and standard headers only"
        return None
    if target.parts[0] not in LAYERS[layer]:
        return f"{layer}/ may not look into {target.parts[0]}/"
    if layer == "src" and target.parts[0] == "src":
        return src_objection(source, target)
    return None


def src_objection(source, target):
    here = source.parts[1] if len(source.parts) > 2 else None
    there = target.parts[1] if len(target.parts) > 2 else None
    if here == "check" or there is None or here == there:
        return None
    if here is None:
        return "what all of src shares may not look into a part of it"
    for part in (here, there):
        if part not in SRC_ORDER:
            return f"src/{part} has no place in the call order {SRC_ORDER}"
    if SRC_ORDER.index(here) > SRC_ORDER.index(there):
        return f"src/{here} is called by src/{there}, not the other way round"
    return None


def violations(root):
    root = root.resolve()
    found = []
    for layer in LAYERS:
        for file in sorted((root / layer).rglob("*")):
            if file.suffix not in CODE:
                continue
            for bracket, name, guarded in includes(file.read_text()):
                reason = objection(root, file, bracket, name, guarded)
                if reason:
                    found.append(f"{file.relative_to(root)} includes {name}: {reason}")
    return found


def test_includes_point_one_way():
    assert violations(ROOT) == []


GOOD_TREE = {
    "include/attune/attune.h": "#include <stdint.h>",
    "include/attune/attention.hpp": "#include <attune/attune.h>\n#include <vector>",
    "kernels/problem.h": "#ifndef X\n#include <stdint.h>\n#endif",
    "kernels/params.h": '#include "problem.h"',
    "src/status.hpp": "#include <attune/attune.h>",
    "src/cpu/pool.hpp": '#include "kernels/params.h"\n#include <hwy/highway.h>',
    "src/select/select.hpp": '#include "src/cpu/pool.hpp"',
    "src/api/api.cpp": '#include "src/select/select.hpp"\n#include "src/status.hpp"',
    "src/check/cases.hpp": '#include "src/api/api.cpp"',
    "evolve/evolve.hpp": '#include "src/check/cases.hpp"',
    "cli/main.cpp": '#include "evolve/evolve.hpp"\n#include <CLI/CLI.hpp>',
    "python/torch.cpp": "#include <attune/attune.h>\n#include <torch/library.h>",
}


def write_tree(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_checker_accepts_a_good_tree(tmp_path):
    write_tree(tmp_path, GOOD_TREE)
    assert violations(tmp_path) == []


@pytest.mark.parametrize(
    "file, text",
    [
        ("kernels/bad.h", '#include "src/status.hpp"'),
        ("kernels/bad.h", '#include "../src/status.hpp"'),
        ("kernels/bad.h", "#include <vector>"),
        ("kernels/bad.h", "#include <stdint.h>"),
        ("kernels/bad.h", "#include <attune/attune.h>"),
        ("include/attune/bad.h", '#include "kernels/problem.h"'),
        ("include/attune/bad.h", "#include <fmt/core.h>"),
        ("src/bad.hpp", '#include "src/cpu/pool.hpp"'),
        ("src/cpu/bad.cpp", '#include "src/select/select.hpp"'),
        ("src/cpu/bad.cpp", '#include "../select/select.hpp"'),
        ("src/api/bad.cpp", '#include "src/check/cases.hpp"'),
        ("src/select/bad.cpp", '#include "evolve/evolve.hpp"'),
        ("src/cpu/bad.cpp", "#include <torch/library.h>"),
        ("src/cpu/bad.cpp", '#include "src/cpu/missing.hpp"'),
        ("src/other/bad.cpp", '#include "src/cpu/pool.hpp"'),
        ("evolve/bad.cpp", '#include "cli/main.cpp"'),
        ("cli/bad.cpp", "#  include <Python.h>"),
        ("python/bad.cpp", '#include "src/status.hpp"'),
    ],
)
def test_checker_names_the_violation(tmp_path, file, text):
    write_tree(tmp_path, GOOD_TREE | {file: text})
    (only,) = violations(tmp_path)
    assert only.startswith(file)


# ---- kernels ----

MOST_LINES = 400
MOST_BRANCHES = 5  # `if constexpr` in any 100 lines of sm80 and sm90
SHARED = {".", "ptx", "tile"}  # what folders of kernels/ may include beside their own files
FUNCTION = re.compile(
    r"((?:^//[^\n]*\n)*)(?:template <[^\n]*>\n)?"
    r"__device__ inline \S+ (\w+)\([^{]*\{(.*?)\}\n(?=\n|\Z|})",
    re.MULTILINE | re.DOTALL,
)


def kernel_files(root):
    return sorted(file for file in (root / "kernels").rglob("*") if file.suffix in CODE)


def most_branches(text):
    lines = [n for n, line in enumerate(text.splitlines()) if "if constexpr" in line]
    return max((sum(first <= n < first + 100 for n in lines) for first in lines), default=0)


def opcodes(body):
    """The words of each instruction in inline PTX; empty where there is none but ties values."""
    text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', body.replace('"memory"', "")))
    text = text.replace("\\n", " ")
    return [re.split(r"[.:]+", name) for name in re.findall(r"\b[a-z]\w*(?:(?:\.|::)\w+)+", text)]


def named_after(name, words):
    """Whether the name's words stand in the opcode, in this order, from its first one on."""
    opcode = iter("_".join(words).split("_"))
    parts = name.split("_")
    return words[0].startswith(parts[0]) and all(part in opcode for part in parts)


def ptx_violations(file):
    for comment, name, body in FUNCTION.findall(file.read_text()):
        if "asm" not in body:
            continue
        found = opcodes(body)
        if not found:
            continue
        if not any(named_after(name, words) for words in found):
            yield f"{file.name}: {name} is not named after {'.'.join(found[0])}"
        if not re.search(r"\bsm_\d+a?\b", comment):
            yield f"{file.name}: {name} does not say from which sm_NN on it exists"


def kernel_violations(root):
    root = root.resolve()
    for file in kernel_files(root):
        name = str(file.relative_to(root / "kernels"))
        folder, text = str(Path(name).parent), file.read_text()
        if len(text.splitlines()) > MOST_LINES:
            yield f"{name} has {len(text.splitlines())} lines"
        if folder in {"sm80", "sm90"} and most_branches(text) > MOST_BRANCHES:
            yield f"{name} has {most_branches(text)} times `if constexpr` in 100 lines"
        if folder == "ptx":
            yield from ptx_violations(file)
        elif re.search(r"\basm\b\s*(volatile)?\s*\(", text):
            yield f"{name} has inline PTX, which lives in kernels/ptx"
        for _, include, _ in includes(text):
            target = target_of(root, file, include)
            there = str(target.relative_to("kernels").parent) if target else folder
            if there not in SHARED | {folder}:
                yield f"{name} takes {include} from another kernel's folder"


def test_kernels_keep_their_rules():
    assert list(kernel_violations(ROOT)) == []


GOOD_KERNELS = {
    "kernels/problem.h": "",
    "kernels/tile/row.h": '#include "../ptx/bar.h"',
    "kernels/sm80/mma.cuh": '#include "../tile/row.h"\n' + 5 * "if constexpr (a) b();\n",
    "kernels/ptx/bar.h": """\
// sm_75
__device__ inline void bar_sync(int id) {
  asm volatile("bar.sync %0;" ::"r"(id) : "memory");
}

__device__ inline int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Until the phase ends, from sm_90 on.
template <int N>
__device__ inline void mbarrier_try_wait_parity(int bar) {
  asm volatile(
      "{\\n"
      "WAIT:\\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\\n"
      "}" ::"r"(bar)
      : "memory");
}

}  // namespace
""",
}


def test_kernel_rules_accept_a_good_tree(tmp_path):
    write_tree(tmp_path, GOOD_TREE | GOOD_KERNELS)
    assert list(kernel_violations(tmp_path)) == []


ASM = '  asm volatile("bar.sync 0;" ::: "memory");\n}\n'


@pytest.mark.parametrize(
    "file, text, reason",
    [
        ("sm80/mma.cuh", 401 * "\n", "has 401 lines"),
        ("sm90/a.cuh", 6 * "if constexpr (a) b();\n", "has 6 times"),
        ("sm90/a.cuh", '#include "../sm80/mma.cuh"', "another kernel's folder"),
        ("tile/a.h", '#include "../sm80/mma.cuh"', "another kernel's folder"),
        ("sm90/a.cuh", "void f() {\n" + ASM, "inline PTX"),
        ("ptx/a.h", "// sm_75\n__device__ inline void bar_wait() {\n" + ASM, "not named after"),
        ("ptx/a.h", "// sm_75\n__device__ inline void sync() {\n" + ASM, "not named after"),
        ("ptx/a.h", "__device__ inline void bar_sync() {\n" + ASM, "does not say"),
    ],
)
def test_kernel_rules_name_the_violation(tmp_path, file, text, reason):
    write_tree(tmp_path, GOOD_TREE | GOOD_KERNELS | {"kernels/" + file: text})
    (only,) = kernel_violations(tmp_path)
    assert only.startswith(file.split("/")[-1] if file.startswith("ptx") else file)
    assert reason in only


def header_version():
    header = (ROOT / "include/attune/attune.h").read_text()
    parts = [
        re.search(rf"#define ATTUNE_VERSION_{p} (\d+)", header)[1]
        for p in ("MAJOR", "MINOR", "PATCH")
    ]
    return ".".join(parts)


def test_one_version_everywhere():
    cache = (ROOT / "build/CMakeCache.txt").read_text()
    assert re.search(r"^CMAKE_PROJECT_VERSION:STATIC=(.*)$", cache, re.M)[1] == header_version()
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(r"^## \[?v?(\d+\.\d+\.\d+)", changelog, re.M)[1] == header_version()
    library = ctypes.CDLL(str(ROOT / "build/libattune.so"))
    library.attune_version.restype = ctypes.c_char_p
    assert library.attune_version().decode() == header_version()


def project_files():
    """What git tracks or would track; in a copy without git, everything that is not built."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
    )
    if listed.returncode == 0:
        files = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    else:
        ignored = re.compile(r"^(build.*|bundle|sysroot-arm64|\.venv|\.git|\.cache)$")
        files = [
            file
            for file in ROOT.rglob("*")
            if not ignored.match(file.relative_to(ROOT).parts[0])
            and "__pycache__" not in file.parts
        ]
    return [file for file in files if file.is_file()]


def test_environment_variables_are_few_and_documented():
    used = set()
    for file in project_files():
        if file.relative_to(ROOT).parts[0] in LAYERS and file.suffix in CODE | {".py"}:
            used |= set(re.findall(r'(?:getenv|environ\S*)\W+"(ATTUNE_\w+)"', file.read_text()))
    documented = set(
        re.findall(r"^\| `(ATTUNE_\w+)`", (ROOT / "docs/environment.md").read_text(), re.M)
    )
    assert used == documented
    assert len(used) < 8


def test_the_library_asks_the_environment_with_care():
    # A set-user-ID program that links it must not load or write what its caller names.
    for file in (ROOT / "src").rglob("*.[ch]pp"):
        assert not re.search(r"(?<!secure_)getenv\(", file.read_text()), file


def list_in(file, name):
    """The value of a name that a Python file sets at its top, without running the file."""
    for node in ast.parse((ROOT / file).read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == name:
            return ast.literal_eval(node.value)
    raise AssertionError(f"{file} sets no {name}")


def test_lists_of_modes_are_those_of_the_header():
    """Where Python cannot ask the library for its rungs."""
    header = (ROOT / "include/attune/attune.h").read_text()
    (body,) = re.findall(r"typedef enum attune_mode \{(.*?)\}", header, re.S)
    modes = {name.lower(): int(n) for name, n in re.findall(r"ATTUNE_(\w+) = (\d+)", body)}
    assert list_in("python/attune/_library.py", "MODES") == modes
    rungs = set(modes) - {"auto", "reference"}
    assert list(modes)[:2] == ["auto", "reference"]  # python/attune/sweep.py takes the others
    ladder = list_in("bench/cuda_rows.py", "LADDER")
    assert set(ladder) == rungs and len(ladder) == len(rungs)
    assert set(list_in("bench/plot_evolve.py", "COLOURS")) == rungs


def test_no_file_names_a_path_of_one_machine():
    path = b"/" + b"work/"
    assert [str(f.relative_to(ROOT)) for f in project_files() if path in f.read_bytes()] == []
