"""Attention on NumPy arrays, straight into the C ABI, and on whatever else speaks DLPack."""

import importlib
from dataclasses import replace

import numpy as np

from . import _library


def _whole(array):
    """Strides that are no multiples of an element (a field of records) cannot be said: a copy."""
    array = np.asarray(array)
    good = all(stride % array.itemsize == 0 for stride in array.strides)
    return array if good else np.ascontiguousarray(array)


def _with_rows(array):
    """The kernels need rows whose elements are neighbours; what lies otherwise is copied."""
    array = _whole(array)
    good = array.ndim == 0 or array.shape[-1] <= 1 or array.strides[-1] == array.itemsize
    return array if good else np.ascontiguousarray(array)


class NumpyCall:
    """The library's arguments, with the arrays that they point into."""

    def __init__(self, q, k, v, options):
        q, k, v = (_with_rows(array) for array in (q, k, v))
        options.check(q, k, v)
        if options.dropout_p > 0 and options.dropout_seed is None:
            seed = int(np.random.default_rng().integers(2**62))
            options = replace(options, dropout_seed=seed)
        self.out = np.empty((*q.shape[:-1], v.shape[-1]), q.dtype)
        self.lse = None
        bshd = options.layout_number() == 1
        views = [array.swapaxes(1, 2) if bshd else array for array in (q, k, v, self.out)]
        fields = {**options.numbers()}
        fields.update({name: _whole(array) for name, array in options.tensors().items()})
        if options.user_data is not None:
            fields["user_data"] = np.asarray(options.user_data).ctypes.data
        if options.return_lse:
            rows = (q.shape[1], q.shape[0]) if options.ragged() else views[0].shape[:3]
            fields["lse"] = self.lse = np.empty(rows, np.float32)
        self.args = _library.load().args(*views, **fields)
        self._alive = views, fields

    def run(self):
        _library.load().forward(self.args)
        return self.out if self.lse is None else (self.out, self.lse)


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
