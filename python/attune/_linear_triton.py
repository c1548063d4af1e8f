"""The steps around linear.py's matrix product, in one pass each."""

from contextlib import nullcontext

import torch
import triton
import triton.language as tl

from . import linear

_TOP = tl.constexpr(linear._TOP)
_BIAS, _BITS = tl.constexpr(linear._BIAS), tl.constexpr(linear._BITS)
_MOST = tl.constexpr(linear._MOST)
_BLOCK = 1024


@triton.jit
def _power(exponent):
    return ((exponent + _BIAS) << _BITS).to(tl.float32, bitcast=True)


@triton.jit
def _split_row(x, halves, exponents, width, stride, LO_AT: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x += row * stride
    halves += row * 3 * width
    columns = tl.arange(0, BLOCK)
    largest = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, width, BLOCK):
        at = begin + columns
        largest = tl.maximum(largest, tl.abs(tl.load(x + at, at < width, 0.0)))
    top = tl.max(largest, 0).to(tl.int32, bitcast=True) >> _BITS
    up = tl.minimum(_TOP + _BIAS - 1 - top, _MOST)
    tl.store(exponents + row, -up)
    for begin in range(0, width, BLOCK):  # short rows are still in the cache
        at = begin + columns
        scaled = tl.load(x + at, at < width, 0.0) * _power(up)
        hi = scaled.to(tl.float16)
        lo = (scaled - hi.to(tl.float32)).to(tl.float16)
        tl.store(halves + LO_AT * width + at, lo, at < width)
        tl.store(halves + (1 - LO_AT) * width + at, hi, at < width)
        tl.store(halves + 2 * width + at, hi, at < width)


@triton.jit
def _finish_row(out, rows, columns, bias, width, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    out += row * width
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exponent = tl.load(rows + row) + tl.load(columns + at, at < width, 0)
    first = exponent >> 1
    value = tl.load(out + at, at < width) * _power(first) * _power(exponent - first)
    if HAS_BIAS:
        value += tl.load(bias + at, at < width)
    tl.store(out + at, value, at < width)


def _on(device):
    """Triton launches on the current device."""
    there = device.index == torch.cuda.current_device()
    return nullcontext() if there else torch.cuda.device(device)


def _split_rows(x, lo_at):
    if x.stride(1) != 1:
        x = x.contiguous()
    rows, width = x.shape
    halves = x.new_empty((rows, 3 * width), dtype=torch.float16)
    exponents = x.new_empty(rows, dtype=torch.int32)
    _split_row[(rows,)](x, halves, exponents, width, x.stride(0), lo_at, _BLOCK)
    return halves, exponents


def split(x, weight):
    with _on(x.device):
        return _split_rows(x, 0) + _split_rows(weight, 1)


def finish(out, rows, columns, bias):
    height, width = out.shape
    grid = height, triton.cdiv(width, _BLOCK)
    bias = bias if bias is None else bias.contiguous()
    with _on(out.device):
        _finish_row[grid](out, rows, columns, bias, width, bias is not None, _BLOCK)
    return out
