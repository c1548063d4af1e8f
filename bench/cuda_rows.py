"""The rows of the comparison on a GPU: named sets of shapes, and what a row costs."""

from dataclasses import dataclass

import attune_ctypes

BACKENDS = ("flash", "cudnn", "efficient", "math")  # of PyTorch
LADDER = ("naive", "tiled", "fused", "mma")  # slowest first
MODES = ("auto", *LADDER)
UNMASKED = "unmasked"  # ours again, beside a row with a mask

SETS = ("seed000", "seed002", "seed003", "seed004", "fa3", "decode", "mask", "ladder")
ALIASES = {"fp32": ("seed004", "seed003")}


@dataclass(frozen=True)
class Row:
    set: str
    shape: str
    dtype: str
    causal: bool = False
    mask: bool = False
    modes: tuple = ()  # instead of those of the command line; the first is "ours"
    backends: tuple = BACKENDS

    def name(self):
        tags = [self.set, self.shape, self.dtype]
        tags += ["causal"] if self.causal else []
        tags += ["mask"] if self.mask else []
        return " ".join(tags)


FA3 = {64: 32, 128: 16, 256: 8}  # head dimension -> heads
FA3_SIZES = ((32, 512), (8, 2048), (2, 8192), (1, 16384))  # batch, sequence


def rows_of(name):
    both = (False, True)
    if name == "seed000":
        sizes = ((8, 512), (4, 1024), (2, 2048), (1, 4096))
        return [Row(name, f"{b}x32x{s}x64", "f16", c) for b, s in sizes for c in both]
    if name == "seed002":
        return [Row(name, "1x8x512x64", "f16")]
    if name == "seed003":
        return [Row(name, f"1x1x{s}x128", "f32") for s in (4096, 16384, 131072)]
    if name == "seed004":
        return [Row(name, f"4x8x{2**n}x64", "f32") for n in range(7, 13)]
    if name == "fa3":
        return [
            Row(name, f"{b}x{heads}x{s}x{dim}", "bf16", c)
            for dim, heads in FA3.items()
            for b, s in FA3_SIZES
            for c in both
        ]
    if name == "decode":
        sizes = ((1, 4096), (1, 131072), (16, 4096), (64, 8192))
        return [Row(name, f"{b}x32/8x1/{s}x128", "bf16") for b, s in sizes]
    if name == "mask":
        shapes = (("2x32x2048x64", "f16"), ("2x16x4096x128", "bf16"))
        return [Row(name, shape, dtype, mask=True) for shape, dtype in shapes]
    if name == "ladder":
        return [
            Row(name, f"2x8x{s}x64", dtype, modes=tuple(reversed(LADDER)), backends=())
            for dtype in ("f32", "f16")
            for s in (512, 1024, 2048)
        ]
    raise ValueError(name)


def flops(row):
    batch, heads, _, seq_q, seq_k, dim, dim_v = attune_ctypes.parse_shape(row.shape)
    return 2 * batch * heads * seq_q * seq_k * (dim + dim_v) / (2 if row.causal else 1)


def key_bytes(row):
    """Of K and V: what decoding has to read."""
    batch, _, heads_kv, _, seq_k, dim, dim_v = attune_ctypes.parse_shape(row.shape)
    return batch * heads_kv * seq_k * (dim + dim_v) * attune_ctypes.ITEM_SIZE[row.dtype]


def input_bytes(row):
    batch, heads, _, seq_q, _, dim, _ = attune_ctypes.parse_shape(row.shape)
    return key_bytes(row) + batch * heads * seq_q * dim * attune_ctypes.ITEM_SIZE[row.dtype]


def math_bytes(row):
    """What PyTorch's math backend holds at once: scores three times, and K and V in fp32."""
    batch, heads, _, seq_q, seq_k, dim, dim_v = attune_ctypes.parse_shape(row.shape)
    return batch * heads * seq_k * (12 * seq_q + 8 * (dim + dim_v))
