"""The C ABI for benchmarks: python/attune/_library.py, and one call on torch's CUDA tensors.

Run as a program it measures how far one call raises the peak of resident memory, in a process
where nothing else happens:

    attune_ctypes.py --shape 1x8x16384x64 --dtype f32 --threads 2
"""

import argparse
import ctypes
import importlib.util
import json
import mmap
import re
import sys
from pathlib import Path

# By its file: importing the package would import torch, which has no place in what measures memory.
_path = Path(__file__).resolve().parents[1] / "python" / "attune" / "_library.py"
_spec = importlib.util.spec_from_file_location("attune_library", _path)
_library = importlib.util.module_from_spec(_spec)
sys.modules["attune_library"] = _library
_spec.loader.exec_module(_library)

ALIGNMENTS, DEVICES, DTYPES, MODES = (
    _library.ALIGNMENTS,
    _library.DEVICES,
    _library.DTYPES,
    _library.MODES,
)
ITEM_SIZE, OK = _library.ITEM_SIZE, _library.OK
Args, BackwardArgs, Error, Library = (
    _library.Args,
    _library.BackwardArgs,
    _library.Error,
    _library.Library,
)
ParallelFor, Task, Tensor = _library.ParallelFor, _library.Task, _library.Tensor
dtype_name = _library.dtype_name
load, tensor, view = _library.load, _library.tensor, _library.view


def parse_shape(text):
    """Batch, heads, key heads, Sq, Sk, D and Dv of "1x8/2x1/16384x64/128", as `attune bench`."""
    match = re.fullmatch(r"(\d+)x(\d+)(?:/(\d+))?x(\d+)(?:/(\d+))?x(\d+)(?:/(\d+))?", text)
    if match is None:
        raise ValueError(f"'{text}' is not a shape BATCHxHEADSxSEQxDIM, as in 1x8x512x64")
    batch, heads, heads_kv, seq_q, seq_k, dim, dim_v = (m and int(m) for m in match.groups())
    return batch, heads, heads_kv or heads, seq_q, seq_k or seq_q, dim, dim_v or dim


def _peak_kb():
    # Not getrusage: its peak begins with that of the process that started this one.
    with open("/proc/self/status") as status:
        return int(re.search(r"VmHWM:\s+(\d+) kB", status.read()).group(1))


def _reset_peak():
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass  # not allowed here; all buffers are resident, so the peak is near today's anyway


def _measure_memory(options):
    batch, heads, heads_kv, seq_q, seq_k, dim, dim_v = parse_shape(options.shape)
    lib = load(options.library)
    buffers = []

    def touched(dtype, *shape):
        count = ITEM_SIZE[dtype]
        for size in shape:
            count *= size
        buffers.append(mmap.mmap(-1, count))
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffers[-1]))
        ctypes.memset(address, 0, count)
        return view(address, dtype, shape)

    def call(queries, keys):
        args = lib.args(
            touched(options.dtype, batch, heads, queries, dim),
            touched(options.dtype, batch, heads_kv, keys, dim),
            touched(options.dtype, batch, heads_kv, keys, dim_v),
            touched(options.dtype, batch, heads, queries, dim_v),
            causal=int(options.causal),
            alignment=ALIGNMENTS["top_left"],
            threads=options.threads,
        )
        if options.mask:
            args.mask = touched("f32", batch, 1, queries, keys)
        return args

    # A tiny call first, for what is paid once: the code's own pages and the threads' stacks.
    lib.forward(call(min(seq_q, 16), min(seq_k, 16)))
    args = call(seq_q, seq_k)
    _reset_peak()
    before = _peak_kb()
    lib.forward(args)
    print(json.dumps({"extra_mb": (_peak_kb() - before) / 1024}))


def main():
    parser = argparse.ArgumentParser(description="Peak extra memory of one attention call, in MB.")
    parser.add_argument("--library", default="build/libattune.so")
    parser.add_argument("--shape", required=True, help="BxHxSxD")
    parser.add_argument("--dtype", type=dtype_name, default="f32", choices=["f32", "f16", "bf16"])
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--mask", action="store_true", help="with an additive f32 mask [B,1,Sq,Sk]")
    parser.add_argument("--threads", type=int, default=0)
    _measure_memory(parser.parse_args())


class CudaCall:
    """One call on torch's CUDA tensors. Arguments and workspace are made once: a run is the bare
    call, and what is timed is not Python."""

    def __init__(self, lib, q, k, v, out, **fields):
        import torch

        self._lib, self._keep = lib, (q, k, v, out, fields)  # args has only addresses
        stream = torch.cuda.current_stream(q.device).cuda_stream
        self.args = lib.args(q, k, v, out, device=DEVICES["cuda"], stream=stream, **fields)
        self.out = out
        self.workspace = torch.empty(
            lib.workspace_size(self.args), dtype=torch.uint8, device=q.device
        )
        self.args.workspace = self.workspace.data_ptr()
        self.args.workspace_bytes = self.workspace.numel()

    def on_stream(self, stream):
        """The same call for another torch stream."""
        self.args.stream = stream.cuda_stream
        return self

    def __call__(self):
        self._lib.forward(self.args)
        return self.out


if __name__ == "__main__":
    main()
