"""The C ABI of include/attune/attune.h through ctypes: its structs, and a small call.

    lib = attune_ctypes.load("build/libattune.so")
    args = lib.args(q, k, v, out, causal=True, threads=2)  # torch, NumPy, or a `view`
    lib.forward(args)                                      # raises attune_ctypes.Error

Run as a program it measures how far one call raises the peak of resident memory, in a process
where nothing else happens:

    attune_ctypes.py --shape 1x8x16384x64 --dtype f32 --threads 2
"""

import argparse
import ctypes
import json
import mmap
import re
from ctypes import (
    CFUNCTYPE,
    POINTER,
    byref,
    c_char_p,
    c_float,
    c_int32,
    c_int64,
    c_size_t,
    c_uint64,
    c_void_p,
    sizeof,
)

OK = 0
DTYPES = {"f32": 1, "f16": 2, "bf16": 3, "bool": 4, "i32": 5}
ITEM_SIZE = {"f32": 4, "f16": 2, "bf16": 2, "bool": 1, "i32": 4}
DEVICES = {"cpu": 0, "cuda": 1}
MODES = {"auto": 0, "reference": 1, "naive": 2, "fused": 3, "tiled": 4, "mma": 5}
ALIGNMENTS = {"unspecified": 0, "top_left": 1, "bottom_right": 2}

# How torch and NumPy call what attune calls f32.
_DTYPE_NAMES = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "bool": "bool",
    "int32": "i32",
}

Task = CFUNCTYPE(None, c_void_p, c_int64)
ParallelFor = CFUNCTYPE(None, c_void_p, c_int64, Task, c_void_p)


class Error(RuntimeError):
    pass


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("dtype", c_int32),
        ("rank", c_int32),
        ("shape", c_int64 * 4),
        ("stride", c_int64 * 4),
    ]


class Args(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("device", c_int32),
        ("mode", c_int32),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("out", Tensor),
        ("lse", Tensor),
        ("scale", c_float),
        ("softcap", c_float),
        ("causal", c_int32),
        ("alignment", c_int32),
        ("window_left", c_int64),
        ("window_right", c_int64),
        ("mask", Tensor),
        ("block_mask", Tensor),
        ("block_mask_q", c_int64),
        ("block_mask_k", c_int64),
        ("alibi_slopes", Tensor),
        ("sinks", Tensor),
        ("cu_seqlens_q", Tensor),
        ("cu_seqlens_k", Tensor),
        ("dropout_p", c_float),
        ("dropout_seed", c_uint64),
        ("dropout_offset", c_uint64),
        ("batch_invariant", c_int32),
        ("threads", c_int32),
        ("parallel_for", ParallelFor),
        ("parallel_user", c_void_p),
        ("stream", c_void_p),
        ("workspace", c_void_p),
        ("workspace_bytes", c_size_t),
        ("max_seq_q", c_int64),
        ("max_seq_k", c_int64),
        ("strict_fp32", c_int32),
        ("score_mod", c_char_p),
        ("mask_mod", c_char_p),
        ("user_data", c_void_p),
    ]


class BackwardArgs(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("forward", POINTER(Args)),
        ("dout", Tensor),
        ("dq", Tensor),
        ("dk", Tensor),
        ("dv", Tensor),
        ("dmask", Tensor),
        ("dsinks", Tensor),
    ]


def view(address, dtype, shape, stride=None):
    """Memory at an address; contiguous unless strides (in elements) are given."""
    if stride is None:
        stride, step = [], 1
        for size in reversed(shape):
            stride.insert(0, step)
            step *= size
    pad = [0] * (4 - len(shape))
    return Tensor(
        address,
        DTYPES[dtype],
        len(shape),
        (c_int64 * 4)(*shape, *pad),
        (c_int64 * 4)(*stride, *pad),
    )


def tensor(array):
    """A view of a torch tensor, a NumPy array, or a Tensor as it is."""
    if isinstance(array, Tensor):
        return array
    name = str(array.dtype).removeprefix("torch.")
    if name not in _DTYPE_NAMES:
        raise Error(f"dtype {name} is not one of {', '.join(_DTYPE_NAMES)}")
    if hasattr(array, "data_ptr"):
        address, stride = array.data_ptr(), array.stride()
    else:
        address, stride = array.ctypes.data, [s // array.itemsize for s in array.strides]
    return view(address, _DTYPE_NAMES[name], list(array.shape), list(stride))


class Library:
    def __init__(self, path):
        self._lib = ctypes.CDLL(str(path))
        for name in ("attune_last_error", "attune_version"):
            getattr(self._lib, name).restype = c_char_p
            getattr(self._lib, name).argtypes = []
        self._lib.attune_args_init.argtypes = [POINTER(Args), c_size_t]
        self._lib.attune_forward.argtypes = [POINTER(Args)]
        self._lib.attune_prepare.argtypes = [POINTER(Args)]
        self._lib.attune_workspace_size.argtypes = [POINTER(Args), POINTER(c_size_t)]
        for name in ("attune_info", "attune_explain"):
            head = [POINTER(Args)] if name == "attune_explain" else []
            getattr(self._lib, name).argtypes = [*head, c_char_p, c_size_t, POINTER(c_size_t)]

    def _check(self, status):
        if status != OK:
            raise Error(self._lib.attune_last_error().decode())

    def version(self):
        return self._lib.attune_version().decode()

    def args(self, q, k, v, out, **fields):
        """Arguments with the library's defaults. Only addresses are kept: the arrays must live."""
        args = Args()
        self._check(self._lib.attune_args_init(byref(args), sizeof(args)))
        for name, value in {"q": q, "k": k, "v": v, "out": out, **fields}.items():
            if name not in dict(Args._fields_):
                raise Error(f"attune_args has no field {name}")
            is_tensor = isinstance(getattr(args, name), Tensor)
            setattr(args, name, tensor(value) if is_tensor else value)
        return args

    def forward(self, args):
        self._check(self._lib.attune_forward(byref(args)))

    def workspace_size(self, args):
        """The bytes of device memory that `forward` would like; 0 on the CPU."""
        bytes_wanted = c_size_t()
        self._check(self._lib.attune_workspace_size(byref(args), byref(bytes_wanted)))
        return bytes_wanted.value

    def prepare(self, args):
        """Compiles what `forward` would run, without running it."""
        self._check(self._lib.attune_prepare(byref(args)))

    def _text(self, function, *head):
        needed = c_size_t()
        self._check(function(*head, None, 0, byref(needed)))
        text = ctypes.create_string_buffer(needed.value)
        self._check(function(*head, text, needed.value, None))
        return json.loads(text.value)

    def explain(self, args):
        return self._text(self._lib.attune_explain, byref(args))

    def info(self):
        return self._text(self._lib.attune_info)


def load(path):
    return Library(path)


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
    parser.add_argument("--dtype", default="f32", choices=["f32", "f16", "bf16"])
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
