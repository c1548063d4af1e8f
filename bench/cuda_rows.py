"""The rows of the comparison on a GPU: named sets of shapes, and what a row costs."""

from dataclasses import dataclass

import attune_ctypes

BACKENDS = ("flash", "cudnn", "efficient", "math")  # of PyTorch
LADDER = ("naive", "tiled", "fused", "mma", "wgmma")  # slowest first
MODES = ("auto", *LADDER)
# Ours again: beside a row with a mask, with a window, with heads that share keys.
UNMASKED, WHOLE, UNSHARED = "unmasked", "whole", "unshared"
TWINS = (UNMASKED, WHOLE, UNSHARED)

SETS = (
    *("seed000", "seed002", "seed003", "seed004", "split", "fa3", "decode", "mask", "ladder"),
    *("dims", "gqa", "window"),
)
ALIASES = {"fp32": ("seed004", "seed003", "split")}


@dataclass(frozen=True)
class Row:
    set: str
    shape: str
    dtype: str
    causal: bool = False
    mask: bool = False
    modes: tuple = ()  # instead of those of the command line; the first is "ours"
    backends: tuple = BACKENDS
    window: int = 0  # keys that a row may look at, itself among them; 0: all

    def twin(self):
        """Which of TWINS is beside it, or None."""
        _, heads, heads_kv, *_ = attune_ctypes.parse_shape(self.shape)
        if self.mask:
            return UNMASKED
        if self.window:
            return WHOLE
        return UNSHARED if self.set == "gqa" and heads != heads_kv else None

    def name(self):
        tags = [self.set, self.shape, self.dtype]
        tags += ["causal"] if self.causal else []
        tags += ["mask"] if self.mask else []
        tags += [f"window {self.window}"] if self.window else []
        return " ".join(tags)


FA3 = {64: 32, 128: 16, 256: 8}  # head dimension -> heads
DIMS = {96: 20, 192: 10}
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
    if name == "split":  # what fp32 is asked for on Hopper beside the seeds
        rows = [Row(name, f"4x8x{s}x64", "f32", causal=True) for s in (512, 1024, 2048, 4096)]
        return rows + [Row(name, f"2x16x{s}x128", "f32") for s in (2048, 8192)]
    if name == "fa3":
        return [
            Row(name, f"{b}x{heads}x{s}x{dim}", "bf16", c)
            for dim, heads in FA3.items()
            for b, s in FA3_SIZES
            for c in both
        ]
    if name == "dims":
        return [
            Row(name, f"{b}x{heads}x{s}x{dim}", "bf16", c)
            for dim, heads in DIMS.items()
            for b, s in FA3_SIZES[:3]
            for c in both
        ]
    if name == "decode":
        sizes = ((1, 4096), (1, 131072), (16, 4096), (64, 8192))
        return [Row(name, f"{b}x32/8x1/{s}x128", "bf16") for b, s in sizes]
    if name == "mask":
        shapes = (("2x32x2048x64", "f16"), ("2x16x4096x128", "bf16"))
        return [Row(name, shape, dtype, mask=True) for shape, dtype in shapes]
    if name == "gqa":
        shapes = (("2x32/8x4096x128", "bf16"), ("4x32/4x2048x64", "f16"))
        return [
            Row(name, shape, dtype, c, backends=("cudnn",)) for shape, dtype in shapes for c in both
        ]
    if name == "window":
        shapes = ("1x16x16384x128", "1x32x16384x64")
        return [Row(name, shape, "bf16", True, backends=(), window=1024) for shape in shapes]
    if name == "ladder":
        return [
            Row(name, f"2x8x{s}x64", dtype, modes=tuple(reversed(rungs)), backends=())
            for dtype, rungs in (("f32", LADDER), ("f16", LADDER))
            for s in (512, 1024, 2048)
        ]
    raise ValueError(name)


def flops(row):
    batch, heads, _, seq_q, seq_k, dim, dim_v = attune_ctypes.parse_shape(row.shape)
    whole = 2 * batch * heads * seq_q * seq_k * (dim + dim_v) / (2 if row.causal else 1)
    return whole * window_share(row.shape, row.window)


def window_share(shape, window):
    """Of a square causal problem, what a window leaves."""
    seq = attune_ctypes.parse_shape(shape)[3]
    return (window * seq - window * (window - 1) / 2) / (seq * (seq + 1) / 2) if window else 1.0


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


# What a row must reach beside cuDNN in the same run: 0.97 of what the kernel study measured, by
# head dimension, causality and sequence.
STUDY = {
    (64, False): {0: 1.17},
    (64, True): {0: 1.20},
    (128, False): {512: 1.06, 2048: 1.11, 8192: 1.15, 16384: 1.15},
    (128, True): {512: 1.07, 2048: 1.20, 8192: 1.20, 16384: 1.22},
}
# TFLOP/s of cuDNN and FlashAttention-3 on one H200, the same day and method: their quotient is the
# line of FlashAttention-3 in a run that has only cuDNN.
MEASURED = {
    ("8x32x512x64", False): (339, 292),
    ("4x32x1024x64", False): (401, 354),
    ("2x32x2048x64", False): (436, 423),
    ("1x32x4096x64", False): (440, 443),
    ("8x32x512x64", True): (207, 182),
    ("4x32x1024x64", True): (281, 258),
    ("2x32x2048x64", True): (333, 365),
    ("1x32x4096x64", True): (373, 423),
    ("1x8x512x64", False): (43, 35),
    ("32x32x512x64", False): (385, 325),
    ("8x32x2048x64", False): (442, 456),
    ("2x32x8192x64", False): (451, 515),
    ("1x32x16384x64", False): (454, 522),
    ("32x32x512x64", True): (260, 223),
    ("8x32x2048x64", True): (382, 391),
    ("2x32x8192x64", True): (429, 485),
    ("1x32x16384x64", True): (440, 512),
    ("32x16x512x128", False): (498, 507),
    ("8x16x2048x128", False): (590, 628),
    ("2x16x8192x128", False): (612, 655),
    ("1x16x16384x128", False): (606, 662),
    ("32x16x512x128", True): (332, 317),
    ("8x16x2048x128", True): (475, 551),
    ("2x16x8192x128", True): (541, 631),
    ("1x16x16384x128", True): (557, 655),
    ("32x8x512x256", False): (506, 516),
    ("8x8x2048x256", False): (626, 673),
    ("2x8x8192x256", False): (660, 697),
    ("1x8x16384x256", False): (668, 717),
    ("32x8x512x256", True): (336, 332),
    ("8x8x2048x256", True): (516, 558),
    ("2x8x8192x256", True): (578, 675),
    ("1x8x16384x256", True): (597, 700),
}


def cudnn_line(row_set, shape, causal):
    """The ratio to cuDNN that a row must reach, and that of FlashAttention-3; None where neither
    was measured."""
    _, _, _, seq, _, dim, _ = attune_ctypes.parse_shape(shape)
    if row_set in ("dims", "mask"):
        return (1.0 if row_set == "dims" else 1.5), None
    if (shape, causal) not in MEASURED:
        return None
    cudnn, fa3 = MEASURED[shape, causal]
    if row_set == "seed002":
        return 0.97 * 1.15, fa3 / cudnn
    study = STUDY.get((dim, causal), {})
    return 0.97 * study.get(seq, study.get(0, fa3 / cudnn / 0.97)), fa3 / cudnn
