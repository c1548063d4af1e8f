"""Makes a CUDA program of `run_attention` into a shared object for the CPU (see the header)."""

import ctypes
import re
import subprocess
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
EMULATOR = "block", "tensor"

# Functions of one instruction, which the programs write in PTX under these names.
INSTRUCTIONS = (
    "power_of_two opaque multiply_add load_matrices load_transposed copy_16 copy_4 wait_for_copies "
    "load_16 store_16 store_4"
).split()


def closing(text, at, pair="()"):
    """Behind the bracket that closes the one at `at`."""
    depth = 0
    for end in range(at, len(text)):
        depth += (text[end] == pair[0]) - (text[end] == pair[1])
        if depth == 0:
            return end + 1
    raise ValueError("a bracket has no partner")


def without_instructions(text):
    """Bodies of one instruction become calls of the header's functions."""
    for name in INSTRUCTIONS:
        for match in reversed(list(re.finditer(rf"__device__ inline [\w ]+ {name}\(", text))):
            behind = closing(text, match.end() - 1)
            end = closing(text, text.index("{", behind), "{}")
            text = text[: match.start()] + text[end:]
    assert "asm" not in re.sub(r"//.*", "", text), "an instruction without a function of its own"
    return text


def translated(text):
    text = re.sub(r"#include <cuda\w+\.h>\n", "", text)
    text = without_instructions(text)
    text = re.sub(
        r"extern __shared__ (?:__align__\(\d+\) )?([\w ]+?) (\w+)\[\];",
        r"\1* \2 = reinterpret_cast<\1*>(cuda_on_cpu::machine().shared);",
        text,
    )
    launch = re.compile(r"(\w+(?:<\w+>)?)\s*<<<(.*?)>>>\(", re.DOTALL)
    while match := launch.search(text):
        end = closing(text, match.end() - 1)
        call = f"{match[1]}{text[match.end() - 1 : end]}"
        text = (
            text[: match.start()]
            + f"cuda_on_cpu::launch({match[2]}, [&] {{ {call}; }})"
            + text[end:]
        )
    return '#include "cuda_on_cpu.hpp"\nusing namespace cuda_on_cpu;\n' + text


def build(text, folder, name="program"):
    """The program as a function: q, k, v of float16 [batch][heads][seq_len][head_dim], ..."""
    source, library = Path(folder) / f"{name}.cpp", Path(folder) / f"{name}.so"
    source.write_text(translated(text))
    command = ["g++", "-std=c++20", "-w", "-fPIC", f"-I{HERE}", f"-I{ROOT}", f"-I{ROOT / 'tests'}"]
    for part in EMULATOR:  # once a folder
        if not (Path(folder) / f"{part}.o").exists():
            file = ROOT / "tests" / "emulator" / f"{part}.cpp"
            made = ["-O2", "-c", str(file), "-o", str(Path(folder) / f"{part}.o")]
            subprocess.run([*command, *made], check=True)
    objects = [str(Path(folder) / f"{part}.o") for part in EMULATOR]
    made = ["-O1", "-shared", str(source), *objects, "-o", str(library)]
    subprocess.run([*command, *made], check=True)
    loaded = ctypes.CDLL(str(library))

    def attention(q, k, v, causal, seed=1):
        batch, heads, seq_len, head_dim = q.shape
        # NaN around every buffer: what is read or written past an end shows.
        room = [np.full(q.size + 512, np.nan, np.float16) for _ in range(4)]
        inside = [part[256:-256].reshape(q.shape) for part in room]
        for to, data in zip(inside, (q, k, v), strict=False):
            to[:] = data
        loaded.cuda_on_cpu_begin(seed)
        loaded.run_attention(
            *(ctypes.c_void_p(part.ctypes.data) for part in inside),
            *(ctypes.c_int(n) for n in (batch, heads, seq_len, head_dim)),
            ctypes.c_bool(causal),
            None,
        )
        for part in room:
            assert np.isnan(part[:256]).all() and np.isnan(part[-256:]).all(), "written outside"
        return inside[3].astype(np.float64)

    return attention


def definition(q, k, v, causal):
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(q.shape[2], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def with_values(text, **values):
    """The program with tunables set."""
    for name, value in values.items():
        text, count = re.subn(rf"(constexpr int {name} = )\d+;", rf"\g<1>{value};", text)
        assert count == 1, name
    return text
