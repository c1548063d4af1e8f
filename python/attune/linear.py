"""A float32 linear layer on tensor cores, at float32 accuracy.

Each number is split in two halves, x = hi + lo, and x w ≈ hi w_hi + hi w_lo + lo w_hi: three
half-precision products, summed in float32, are one matrix product of triple depth. What is dropped,
lo w_lo, is 2^-22 of a product. The two small products come first in that depth: tensor cores round
each step of a sum towards zero, and the fewer steps are taken with a large sum the better.

Every row of x and of the weight is first brought into float16's range by a power of two of its own,
so that a number is off by 2^-22 of itself or by 2^-39 of its row's largest, whichever is more. A
row that holds an infinity becomes NaN."""

import functools
import warnings

import torch
from torch import nn

_TOP = 14  # a row's largest magnitude becomes less than 2^14: halves stay far from overflow
_BIAS, _BITS = 127, 23  # of float32's exponent, and of its fraction
_MOST = 126  # the largest power of two taken; the smallest normal number becomes 1


def _power(exponent):
    """2^exponent, exactly, by its bits."""
    return ((exponent + _BIAS) << _BITS).view(torch.float32)


def _split_rows(x, lo_at):
    """([rows, 3 width] halves, exponents): row n of x is 2^exponents[n] times its hi and lo. lo
    stands in block lo_at of the three, hi in the others."""
    top = torch.linalg.vector_norm(x, torch.inf, dim=1).view(torch.int32) >> _BITS
    up = (_TOP + _BIAS - 1 - top).clamp(max=_MOST)
    scaled = x * _power(up)[:, None]
    hi = scaled.half()
    blocks = [hi, hi, hi]
    blocks[lo_at] = (scaled - hi).half()
    return torch.cat(blocks, 1), -up


def _split_plain(x, weight):
    """The halves of both, in the order in which they meet, and their exponents."""
    return _split_rows(x, 0) + _split_rows(weight, 1)


def _finish_plain(out, rows, columns, bias):
    """out 2^(rows + columns) + bias. In two steps: one power alone may leave float32's range."""
    exponent = rows[:, None] + columns
    first = exponent >> 1
    out = out * _power(first) * _power(exponent - first)
    return out if bias is None else out + bias


def _product(a, b):
    """a bᵀ of halves, in float32."""
    if a.is_cuda:
        return torch.mm(a, b.t(), out_dtype=torch.float32)
    return a.float() @ b.float().t()


@functools.cache
def _steps():
    """(split, finish) for CUDA: in one pass each where Triton works, as torch's wheels bring it."""
    try:
        from . import _linear_triton

        ones = torch.ones(1, 16, device="cuda")
        _linear_triton.split(ones, ones)
    except Exception as error:  # no Triton, or none that can compile here
        warnings.warn(f"attune.linear works, but slower than it could: {error}", stacklevel=2)
        return _split_plain, _finish_plain
    return _linear_triton.split, _linear_triton.finish


def split_linear(x, weight, bias=None):
    """torch.nn.functional.linear(x, weight, bias) for float32; no gradients."""
    split, finish = _steps() if x.is_cuda else (_split_plain, _finish_plain)
    a, rows, b, columns = split(x.reshape(-1, x.shape[-1]), weight)
    return finish(_product(a, b), rows, columns, bias).view(*x.shape[:-1], weight.shape[0])


class Linear(nn.Linear):
    """nn.Linear whose float32 products run on tensor cores where there are some, without gradients;
    everywhere else it is nn.Linear."""

    def forward(self, x):
        ours = x.is_cuda and x.dtype == torch.float32 == self.weight.dtype and x.numel() > 0
        if (
            not ours
            or torch.is_grad_enabled()
            or torch.compiler.is_compiling()
            or torch._C._is_any_autocast_enabled()
        ):
            return super().forward(x)
        return split_linear(x, self.weight, self.bias)
