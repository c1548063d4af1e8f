"""The C ABI of attune.h through ctypes: its structs, and a small call.

lib = load()                                           # the library of this package
args = lib.args(q, k, v, out, causal=True, threads=2)  # torch, NumPy, or a `view`
lib.forward(args)                                      # raises an Error
"""

import ctypes
import functools
import json
import os
import struct
from ctypes import (
    CFUNCTYPE,
    POINTER,
    byref,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_size_t,
    c_uint64,
    c_void_p,
    sizeof,
)
from pathlib import Path

ABI = 1  # ATTUNE_ABI_VERSION of the header that the structs below follow

OK = 0
DTYPES = {"f32": 1, "f16": 2, "bf16": 3, "bool": 4, "i32": 5, "f64": 6}
ITEM_SIZE = {"f32": 4, "f16": 2, "bf16": 2, "bool": 1, "i32": 4, "f64": 8}
DEVICES = {"cpu": 0, "cuda": 1}
MODES = {"auto": 0, "reference": 1, "naive": 2, "fused": 3, "tiled": 4, "mma": 5, "wgmma": 6}
ALIGNMENTS = {"unspecified": 0, "top_left": 1, "bottom_right": 2}

# How torch and NumPy call what attune calls f32.
_DTYPE_NAMES = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "bool": "bool",
    "int32": "i32",
    "float64": "f64",
}


def dtype_name(text):
    """Our name of a dtype, of an option say; what is not known stays as it is."""
    return {"fp32": "f32", "fp16": "f16", **_DTYPE_NAMES}.get(text, text)


Task = CFUNCTYPE(None, c_void_p, c_int64)
ParallelFor = CFUNCTYPE(None, c_void_p, c_int64, Task, c_void_p)


class Error(RuntimeError):
    """What the library refused or failed at; its words are the message."""


class InvalidArgument(Error, ValueError):
    """The input is wrong; the message names the argument and both values."""


class Unsupported(Error, NotImplementedError):
    """The input is right, but nothing here can run it; the message says why."""


class OutOfMemory(Error, MemoryError):
    pass


_ERRORS = {1: InvalidArgument, 2: Unsupported, 3: OutOfMemory}
_BY_NAME = {
    "invalid argument": InvalidArgument,
    "unsupported": Unsupported,
    "out of memory": OutOfMemory,
}


def error_of(error):
    """The exception for what a torch op said of the library's status; another stays what it is."""
    said = str(error).removeprefix("attune: ")
    name, _, why = said.partition(": ")
    if said == str(error):
        return error
    return _BY_NAME[name](why) if name in _BY_NAME else Error(said)


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
        ("scale_f64", c_double),
        ("softcap_f64", c_double),
        ("key_lengths", Tensor),
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
        ("dlse", Tensor),
    ]


_FIELDS = dict(Args._fields_)
_OFFSETS = {name: getattr(Args, name).offset for name, kind in _FIELDS.items() if kind is Tensor}
_TENSOR = struct.Struct("@Pii4q4q")  # as Tensor
assert _TENSOR.size == sizeof(Tensor)
_NO_SIZES = (0, 0, 0, 0)


def put_tensor(args, name, address, dtype, shape, stride):
    """args.<name> = view(address, ...), for a dtype's number: a tenth of the time."""
    rank = len(shape)
    if rank < 4:
        pad = _NO_SIZES[rank:]
        shape, stride = (*shape, *pad), (*stride, *pad)
    _TENSOR.pack_into(args, _OFFSETS[name], address, dtype, rank, *shape, *stride)


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
    if len(array.shape) > 4:
        raise InvalidArgument(f"an array has {len(array.shape)} dimensions; 4 are the most")
    if hasattr(array, "data_ptr"):
        address, stride = array.data_ptr(), array.stride()
    else:
        if any(s % array.itemsize for s in array.strides):
            raise InvalidArgument("an array's strides are no multiples of its elements")
        address, stride = array.ctypes.data, [s // array.itemsize for s in array.strides]
    return view(address, _DTYPE_NAMES[name], list(array.shape), list(stride))


_ONE_VERSION = "install package and library of one version (in a source tree: ./x build)"


class Library:
    def __init__(self, path):
        self._lib = ctypes.CDLL(str(path))
        if (abi := self._lib.attune_abi_version()) != ABI:
            raise ImportError(f"{path} has ABI {abi}, and this package needs {ABI}: {_ONE_VERSION}")
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
        defaults = Args()
        self._check(self._lib.attune_args_init(byref(defaults), sizeof(defaults)))
        self._defaults = bytes(defaults)

    def _check(self, status):
        if status != OK:
            raise _ERRORS.get(status, Error)(self._lib.attune_last_error().decode())

    def version(self):
        return self._lib.attune_version().decode()

    def args(self, q, k, v, out, **fields):
        """Arguments with the library's defaults. Only addresses are kept: the arrays must live."""
        args = self.new_args()
        for name, value in {"q": q, "k": k, "v": v, "out": out, **fields}.items():
            if name not in _FIELDS:
                raise Error(f"attune_args has no field {name}")
            setattr(args, name, tensor(value) if _FIELDS[name] is Tensor else value)
        return args

    def new_args(self):
        return Args.from_buffer_copy(self._defaults)

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


HERE = Path(__file__).resolve().parent


def folders():
    """Where the library and the torch ops may lie: beside this file (installed), or in the build of
    the source tree that this file is a part of. ATTUNE_BUILD_DIR names another build."""
    build = os.environ.get("ATTUNE_BUILD_DIR")
    return [Path(build)] if build else [HERE, HERE.parents[1] / "build"]


def find(*names):
    for folder in folders():
        for name in names:
            if (folder / name).exists():
                return folder / name
    return None


def torch_advice():
    """What to do where torch, or the ops for it, are missing."""
    again = "" if find("_torch_ops.so") else ", then install Attune again (in a tree: ./x build)"
    return f"pip install torch (2.10 or later){again}. NumPy arrays and DLPack work without"


@functools.cache
def load(path=None):
    """The library at `path`, or this package's own."""
    path = path or find(f"libattune.so.{ABI}", "libattune.so")
    if path is None:
        places = ", ".join(map(str, folders()))
        raise ImportError(
            f"libattune.so.{ABI} is neither in the package nor in a build; looked in: {places}. "
            "In a source tree: ./x build"
        )
    try:
        return Library(path)
    except OSError as error:
        raise ImportError(f"{path} cannot be loaded: {error}") from None
    except AttributeError as error:  # a function that it lacks
        raise ImportError(f"{path} is of another version: {error}; {_ONE_VERSION}") from None
