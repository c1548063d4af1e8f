"""Attention on NumPy arrays, straight into the C ABI, and on whatever else speaks DLPack."""

import importlib
import math
from dataclasses import replace

import numpy as np

from . import _library
from ._arguments import alignment_number, scale_number

_KINDS = {np.dtype(name): number for name, number in
          (("f4", 1), ("f2", 2), ("?", 4), ("i4", 5), ("f8", 6))}  # fmt: skip
_F64 = _library.DTYPES["f64"]
# What an array of another dtype should have become.
_WANTED = {
    "block_mask": "bool",
    "cu_seqlens_q": "numpy.int32",
    "cu_seqlens_k": "numpy.int32",
    "key_lengths": "numpy.int32",
}


def _kind(name, array):
    """The dtype's number in the C ABI."""
    kind = _KINDS.get(array.dtype)
    if kind is not None:
        return kind
    if array.dtype.name == "bfloat16":  # of the package ml_dtypes
        return _library.DTYPES["bf16"]
    wanted = _WANTED.get(name, "numpy.float32")
    if not array.dtype.isnative:
        wanted = f"{name}.dtype.newbyteorder('=')"
    raise _library.InvalidArgument(
        f"{name} has the dtype {array.dtype}, which is not supported: convert it with "
        f".astype({wanted})"
    )


def _plain(name, array):
    if type(array) is np.ndarray:
        return array
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(
            f"{name} is a masked array, and what it masks would be lost: give .filled(value), and "
            "say by the argument mask which keys are seen"
        )
    return np.asarray(array)


def _whole(array):
    """Strides that are no multiples of an element (a field of records) cannot be said: a copy."""
    good = all(stride % array.itemsize == 0 for stride in array.strides)
    return array if good else np.ascontiguousarray(array)


def _with_rows(name, array):
    """The kernels need rows whose elements are neighbours; what lies otherwise is copied."""
    array = _plain(name, array)
    if array.flags.c_contiguous:
        return array
    array = _whole(array)
    good = array.ndim == 0 or array.shape[-1] <= 1 or array.strides[-1] == array.itemsize
    return array if good else np.ascontiguousarray(array)


def _put(args, name, array, bshd=False):
    kind = _KINDS.get(array.dtype) or _kind(name, array)
    shape, size = array.shape, array.itemsize
    if len(shape) > 4:
        raise _library.InvalidArgument(f"{name} has {len(shape)} dimensions; 4 are the most")
    strides = [stride // size for stride in array.strides]
    if bshd:
        b, s, h, d = shape
        shape = b, h, s, d
        strides[1], strides[2] = strides[2], strides[1]
    address = array.__array_interface__["data"][0]
    _library.put_tensor(args, name, address, kind, shape, strides)
    return kind


class NumpyCall:
    """The library's arguments, with the arrays that they point into."""

    def __init__(self, q, k, v, options):
        q, k, v = _with_rows("q", q), _with_rows("k", k), _with_rows("v", v)
        options.check(q, k, v)
        self._library = _library.load()
        self.args = args = self._library.new_args()
        bshd = options.layout_number() == 1
        kind = _put(args, "q", q, bshd)
        _put(args, "k", k, bshd)
        _put(args, "v", v, bshd)
        self.out = np.empty((*q.shape[:-1], v.shape[-1]), q.dtype)
        _put(args, "out", self.out, bshd)
        self.lse = None
        if options.return_lse:
            rows = args.q.shape[:3] if not options.ragged() else (q.shape[1], q.shape[0])
            self.lse = np.empty(rows, np.float64 if kind == _F64 else np.float32)
            _put(args, "lse", self.lse)
        self._alive = [q, k, v]
        if options.is_plain():
            self._set_few(options, kind)
        else:
            self._set_all(options, kind)
        if options.mask is not None:
            self._put_optional("mask", options.mask, kind)

    def _set_few(self, options, kind):
        args = self.args
        args.causal = bool(options.is_causal)
        if options.causal_alignment is not None:
            args.alignment = alignment_number(options.causal_alignment)
        if options.scale is not None:
            setattr(args, "scale_f64" if kind == _F64 else "scale", scale_number(options.scale))

    def _set_all(self, options, kind):
        args = self.args
        numbers = options.numbers()
        if kind == _F64:
            for name in ("scale", "softcap"):
                numbers[f"{name}_f64"] = numbers.pop(name)
        if options.dropout_p > 0 and options.dropout_seed is None:
            numbers["dropout_seed"] = int(np.random.default_rng().integers(2**62))
        for name, value in numbers.items():
            setattr(args, name, value)
        for name, array in options.tensors().items():
            if name != "mask":
                self._put_optional(name, array, kind)
        if options.user_data is not None:  # the library says that the CPU has no use for it
            args.user_data = _plain("user_data", options.user_data).ctypes.data

    def _put_optional(self, name, array, kind):
        array = _whole(_plain(name, array))
        self._alive.append(array)
        if _put(self.args, name, array) == _F64 != kind:
            raise _library.InvalidArgument(
                f"{name} is float64, and q is not: convert it with .astype(numpy.float32)"
            )

    def run(self):
        self._library.forward(self.args)
        return self.out if self.lse is None else (self.out, self.lse)


def scaled_dot_product_attention(query, key, value, options):
    """As torch's function: two dimensions or more; what leads is broadcast, and a single head too,
    unless groups of heads share keys."""
    given = [_plain("query", query), _plain("key", key), _plain("value", value)]
    if all(t.ndim == 4 and t.shape[:2] == query.shape[:2] for t in given):
        return NumpyCall(*given, options).run()
    if min(t.ndim for t in given) < 2:
        raise ValueError("query, key and value need at least 2 dimensions")
    rank = max(t.ndim for t in given)
    given = [t[(None,) * (max(rank, 4) - t.ndim)] for t in given]
    lead = np.broadcast_shapes(*(t.shape[:-3] for t in given))
    heads = [t.shape[-3] for t in given]
    if not options.enable_gqa:
        heads = [max(heads) if count == 1 else count for count in heads]

    def four(array, *last):
        return np.broadcast_to(array, (*lead, *last)).reshape(math.prod(lead), *last)

    if options.mask is not None and rank > 4 and options.mask.ndim > 2:
        mask = four(options.mask, max(heads), given[0].shape[-2], given[1].shape[-2])
        options = replace(options, mask=mask)
    given = [four(t, count, *t.shape[-2:]) for t, count in zip(given, heads, strict=True)]
    out = NumpyCall(*given, options).run()
    shape = (*lead, *out.shape[1:])  # of as many dimensions as were given
    return out.reshape(shape[len(shape) - rank :])


def _namespace(array):
    """The module that makes such arrays: jax.numpy, cupy, ..."""
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__()
    return importlib.import_module(type(array).__module__.split(".")[0])


def _through():
    """(from_dlpack, attention, why not on a GPU): torch knows every device and dtype."""
    try:
        import torch

        from . import _torch

        _torch.need_ops()
        return torch.from_dlpack, _torch.attention, ""
    except ImportError as error:
        return np.from_dlpack, lambda *arrays: NumpyCall(*arrays).run(), str(error)


def from_dlpack(q, k, v, options):
    """The same as arrays that we can compute with, and the function that does."""
    here, call, why_no_gpu = _through()
    kind = q.__dlpack_device__()[0]
    if why_no_gpu and kind != 1:  # kDLCPU
        raise ImportError(f"arrays on a GPU that are not torch's go through torch: {why_no_gpu}")
    given = {name: here(array) for name, array in options.tensors().items()}
    return call, here(q), here(k), here(v), replace(options, **given)


def dlpack_attention(q, k, v, options):
    made_by = _namespace(q)
    call, *arguments = from_dlpack(q, k, v, options)
    result = call(*arguments)
    if isinstance(result, tuple):
        return tuple(made_by.from_dlpack(part) for part in result)
    return made_by.from_dlpack(result)
