"""Attune: fused attention kernels for CPU and CUDA.

    import attune, torch
    out = attune.scaled_dot_product_attention(q, k, v, is_causal=True)   # as torch's own
    out, lse = attune.attention(q, k, v, window=(1023, 0), return_lse=True)
    print(attune.explain(q, k, v))                                       # which kernel, and why

The same functions take NumPy arrays and whatever speaks DLPack.
"""

import importlib
import sys

from . import _functions, _library
from ._functions import (
    attention,
    explain,
    info,
    reference_attention,
    scaled_dot_product_attention,
)
from ._library import Error, InvalidArgument, OutOfMemory, Unsupported

__version__ = _functions.version()

# What needs torch, or is rarely needed, is imported when it is asked for: NumPy's users need no
# torch, nor its seconds.
_LATER = {
    "evolve": "_tool",
    "flash_attn_func": "flash",
    "flash_attn_kvpacked_func": "flash",
    "flash_attn_qkvpacked_func": "flash",
    "flash_attn_varlen_func": "flash",
    "flash_attn_varlen_kvpacked_func": "flash",
    "flash_attn_varlen_qkvpacked_func": "flash",
    "flash_attn_with_kvcache": "flash",
    "Attention": "modules",
    "MultiheadSelfAttention": "modules",
    "CUDAAttention": "modules",
    "cuda_attention_forward": "modules",
    "run_flash": "modules",
    "register_transformers": "integrations",
    "sdpa": "integrations",
}

__all__ = [
    "Error",
    "InvalidArgument",
    "OutOfMemory",
    "Unsupported",
    "attention",
    "explain",
    "info",
    "reference_attention",
    "scaled_dot_product_attention",
    *_LATER,
]


_MODULES = (
    "bench",
    "distributed",
    "evaluate",
    "evolve_module",
    "flash",
    "integrations",
    "linear",
    "modules",
)
_MODULES += ("onnx", "sweep")

if "torch" in sys.modules:  # the ops are there for who loads a program that was saved with them
    from . import _torch  # noqa: F401


def _module(name):
    try:
        return importlib.import_module(f"attune.{name}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        advice = _library.torch_advice()
        raise ModuleNotFoundError(f"attune.{name} needs torch: {advice}", name="torch") from error


def __getattr__(name):
    if name in _LATER:
        return getattr(_module(_LATER[name]), name)
    if name in _MODULES:
        return _module(name)
    raise AttributeError(f"module 'attune' has no attribute '{name}'")


def __dir__():
    return sorted({*globals(), *__all__})
