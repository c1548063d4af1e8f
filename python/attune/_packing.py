"""Values with tensors in them as one block of bytes, for memory that processes share.

A block is the length of its header, the header (JSON) and the tensors, each at a multiple of ALIGN.
"""

import json
import math

import torch

ALIGN = 64  # bytes


def _up(n):
    return -(-n // ALIGN) * ALIGN


def pack(value, memory):
    """Writes a value to a tensor of bytes and returns how many it took. Tensors come from any
    device; beside them there may be lists, tuples, dicts, and what JSON knows."""
    tensors, at = [], 0

    def described(value):
        nonlocal at
        if isinstance(value, torch.Tensor):
            place, at = at, at + _up(value.nbytes)
            tensors.append((place, value.detach()))
            return ["tensor", [list(value.shape), str(value.dtype).removeprefix("torch."), place]]
        if isinstance(value, (list, tuple)):
            return ["tuple" if isinstance(value, tuple) else "list", [*map(described, value)]]
        if isinstance(value, dict):
            return ["dict", [[key, described(one)] for key, one in value.items()]]
        if value is None or isinstance(value, (bool, int, float, str)):
            return ["plain", value]
        raise TypeError(f"a {type(value).__name__} cannot be passed between processes")

    header = json.dumps(described(value)).encode()
    begin = _up(8 + len(header))
    if begin + at > len(memory):
        raise MemoryError(f"it takes {begin + at} bytes, and {len(memory)} are there")
    header = len(header).to_bytes(8, "little") + header
    memory[: len(header)] = torch.frombuffer(bytearray(header), dtype=torch.uint8)
    for place, value in tensors:
        if value.nbytes:
            part = memory[begin + place : begin + place + value.nbytes]
            part.view(value.dtype).view(value.shape).copy_(value)
    return begin + at


def header(memory):
    """The bytes of the header, with its length."""
    length = int.from_bytes(memory[:8].numpy().tobytes(), "little")
    return memory[: 8 + length].numpy().tobytes()


def unpack(memory):
    """The value; its tensors are views of the memory."""
    text = header(memory)
    begin = _up(len(text))

    def made(what):
        kind, value = what
        if kind == "tensor":
            shape, dtype, place = value
            dtype = getattr(torch, dtype)
            place += begin
            part = memory[place : place + math.prod(shape) * dtype.itemsize]
            return part.view(dtype).view(shape) if part.numel() else torch.empty(shape, dtype=dtype)
        if kind in ("list", "tuple"):
            return (list if kind == "list" else tuple)(map(made, value))
        return {key: made(one) for key, one in value} if kind == "dict" else value

    return made(json.loads(text[8:]))


def tensors(value):
    """Those in a value, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for one in value for t in tensors(one)] if isinstance(value, (list, tuple)) else []


def changed(value, change):
    """The value with change(tensor) for each tensor."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: changed(one, change) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return (list if isinstance(value, list) else tuple)(changed(v, change) for v in value)
    return value
