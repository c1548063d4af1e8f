"""The rows of the comparison on a GPU: named sets of shapes, and what a row costs."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import attune_ctypes

BACKENDS = ("flash", "cudnn", "efficient", "math")  # of PyTorch
FA3 = "fa3"  # FlashAttention-3, of the package flash_attn_interface
PEERS = (*BACKENDS, FA3)
# With the LSE: our first mode, and cuDNN. FlashAttention-3 always computes it.
LSE, CUDNN_LSE = "lse", "cudnn-lse"
LADDER = ("naive", "tiled", "fused", "mma", "wgmma")  # slowest first
MODES = ("auto", *LADDER)
# Ours again: beside a row with a mask, with a window, with heads that share keys, with a tensor of
# lengths.
UNMASKED, WHOLE, UNSHARED, COMMON = "unmasked", "whole", "unshared", "common"
TWINS = (UNMASKED, WHOLE, UNSHARED, COMMON)

# Those of `attune bench`, and four that are comparisons: with and without a mask, with and without
# a window, with a tensor of lengths and one common length, and all rungs.
SHARED = json.loads((Path(__file__).resolve().parents[1] / "cli" / "sets.json").read_text())
SETS = (*(shared["name"] for shared in SHARED), "mask-additive", "window-1k", "lengths", "ladder")
GROUPS = {"fp32": ("fp32-d64", "fp32-long", "fp32-mixed")}
OLD_NAMES = {
    **{shared["old_name"]: shared["name"] for shared in SHARED if "old_name" in shared},
    "mask": "mask-additive",
    "window": "window-1k",
}


@dataclass(frozen=True)
class Row:
    set: str
    shape: str
    dtype: str
    causal: bool = False
    mask: bool = False
    modes: tuple = ()  # instead of those of the command line; the first is "ours"
    backends: tuple = PEERS
    window: int = 0  # keys that a row may look at, itself among them; 0: all
    lengths: bool = False  # how many keys a sequence has comes in a tensor; timed in graphs

    def twin(self):
        """Which of TWINS is beside it, or None."""
        _, heads, heads_kv, *_ = attune_ctypes.parse_shape(self.shape)
        if self.mask:
            return UNMASKED
        if self.window:
            return WHOLE
        if self.lengths:
            return COMMON
        return UNSHARED if self.set == "gqa" and heads != heads_kv else None

    def name(self):
        tags = [self.set, self.shape, self.dtype]
        tags += ["causal"] if self.causal else []
        tags += ["mask"] if self.mask else []
        tags += [f"window {self.window}"] if self.window else []
        tags += ["lengths"] if self.lengths else []
        return " ".join(tags)


def settle_sets(names):
    """Each set once: groups are taken apart, old names replaced."""
    current = [OLD_NAMES.get(name, name) for name in names]
    return list(dict.fromkeys(part for name in current for part in GROUPS.get(name, (name,))))


def rows_of(name):
    if name == "mask-additive":
        shapes = (("2x32x2048x64", "f16"), ("2x16x4096x128", "bf16"))
        return [Row(name, shape, dtype, mask=True) for shape, dtype in shapes]
    if name == "window-1k":
        shapes = ("1x16x16384x128", "1x32x16384x64")
        return [Row(name, shape, "bf16", True, backends=(FA3,), window=1024) for shape in shapes]
    if name == "lengths":
        sizes = ("1x32/8x1/4096", "8x32/8x1/2048", "16x32/8x1/4096", "64x32/8x1/8192")
        return [Row(name, f"{size}x128", "bf16", backends=(), lengths=True) for size in sizes]
    if name == "ladder":
        return [
            Row(name, f"2x8x{s}x64", dtype, modes=tuple(reversed(rungs)), backends=())
            for dtype, rungs in (("f32", LADDER), ("f16", LADDER))
            for s in (512, 1024, 2048)
        ]
    for shared in SHARED:
        if shared["name"] == name:
            rows = [
                Row(name, shape, group["dtype"], causal)
                for group in shared["groups"]
                for shape in group["shapes"]
                for causal in group["causal"]
            ]
            # PyTorch's other backends repeat the keys, or refuse.
            return (
                [replace(row, backends=("cudnn", FA3)) for row in rows] if name == "gqa" else rows
            )
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


# Ratios to cuDNN that experiments with these kernels measured, by head dimension, causality and
# sequence length. A row must reach 0.97 of that beside cuDNN in the same run.
EXPERIMENTS = {
    (64, False): {0: 1.17},
    (64, True): {0: 1.20},
    (128, False): {512: 1.06, 2048: 1.11, 8192: 1.15, 16384: 1.15},
    (128, True): {512: 1.07, 2048: 1.20, 8192: 1.20, 16384: 1.22},
}
# TFLOP/s of cuDNN and FlashAttention-3 on one H200, the same day and method: their quotient stands
# for FlashAttention-3 in a run that has only cuDNN.
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


def cudnn_requirement(row_set, shape, causal):
    """The ratio to cuDNN that a row must reach, and that of FlashAttention-3; None where neither
    was measured."""
    _, _, _, seq, _, dim, _ = attune_ctypes.parse_shape(shape)
    if row_set in ("d96-d192", "mask-additive"):
        return (1.0 if row_set == "d96-d192" else 1.5), None
    if (shape, causal) not in MEASURED:
        return None
    cudnn, fa3 = MEASURED[shape, causal]
    if row_set == "single-512":
        return 0.97 * 1.15, fa3 / cudnn
    measured = EXPERIMENTS.get((dim, causal), {})
    return 0.97 * measured.get(seq, measured.get(0, fa3 / cudnn / 0.97)), fa3 / cudnn
