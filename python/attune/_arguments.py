"""The arguments of an attention call, whatever its tensors are made of."""

from dataclasses import dataclass
from typing import Any

from ._library import ALIGNMENTS, MODES

LAYOUTS = {"bhsd": 0, "bshd": 1}
RAGGED = 2  # what the ops call the layout of a ragged batch
TENSORS = (
    "mask",
    "block_mask",
    "alibi_slopes",
    "sinks",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "key_lengths",
)


@dataclass
class Options:
    """attention()'s keywords: its docstring says what they mean."""

    mask: Any = None
    is_causal: bool = False
    causal_alignment: str | None = None
    scale: float | None = None
    window: Any = None
    softcap: float = 0.0
    alibi_slopes: Any = None
    sinks: Any = None
    dropout_p: float = 0.0
    dropout_seed: int | None = None
    dropout_offset: int = 0
    enable_gqa: bool = True
    block_mask: Any = None
    block_size: tuple[int, int] = (128, 128)
    cu_seqlens_q: Any = None
    cu_seqlens_k: Any = None
    max_seqlen_q: int = 0
    max_seqlen_k: int = 0
    key_lengths: Any = None
    score_mod: str | None = None
    mask_mod: str | None = None
    user_data: Any = None
    mode: str = "auto"
    layout: str = "bhsd"
    return_lse: bool = False
    strict_fp32: bool = False
    batch_invariant: bool = False

    def ragged(self):
        return self.cu_seqlens_q is not None

    def is_plain(self):
        """Whether the op with few arguments can say it: half the time on the host."""
        return (
            self.window in (None, (None, None))
            and self.alibi_slopes is None
            and self.sinks is None
            and self.block_mask is None
            and self.cu_seqlens_q is None
            and self.cu_seqlens_k is None
            and self.key_lengths is None
            and self.user_data is None
            and self.mode == "auto"
            and not (self.softcap or self.dropout_p or self.max_seqlen_q or self.max_seqlen_k)
            and not (self.score_mod or self.mask_mod)
            and not (self.return_lse or self.strict_fp32 or self.batch_invariant)
        )

    def layout_number(self):
        return RAGGED if self.ragged() else choose("layout", self.layout, LAYOUTS)

    def check(self, q, k, v):
        """What has to be known before the tensors can be read as [B,H,S,D]."""
        if not q.ndim == k.ndim == v.ndim == (3 if self.ragged() else 4):
            wanted = (
                "3 of a ragged batch: [tokens, heads, dim]"
                if self.ragged()
                else f"4 ({self.layout}), nor 2 or 3 each of bhsd's last"
            )
            raise ValueError(
                f"q, k and v have {q.ndim}, {k.ndim} and {v.ndim} dimensions, not {wanted}"
            )
        if not self.enable_gqa:
            at = 2 if self.layout_number() == 1 else 1
            if q.shape[at] != k.shape[at]:
                raise ValueError(
                    f"q has {q.shape[at]} heads and k has {k.shape[at]}: "
                    "with enable_gqa=True groups of heads share keys"
                )

    def numbers(self):
        """Everything but tensors, by the names of the C ABI's fields."""
        left, right = window_sides(self.window)
        numbers = {
            "mode": choose("mode", self.mode, MODES),
            "scale": scale_number(self.scale),
            "softcap": float(self.softcap),
            "causal": int(self.is_causal),
            "alignment": alignment_number(self.causal_alignment),
            "window_left": integer("window", left),
            "window_right": integer("window", right),
            "dropout_p": float(self.dropout_p),
            "dropout_seed": integer("dropout_seed", self.dropout_seed or 0, 64),
            "dropout_offset": integer("dropout_offset", self.dropout_offset, 64),
            "strict_fp32": int(self.strict_fp32),
            "batch_invariant": int(self.batch_invariant),
        }
        integer("max_seqlen_q", self.max_seqlen_q)
        integer("max_seqlen_k", self.max_seqlen_k)
        if self.block_mask is not None:
            numbers["block_mask_q"], numbers["block_mask_k"] = (
                integer("block_size", size) for size in self.block_size
            )
        for name in ("score_mod", "mask_mod"):
            if getattr(self, name):
                numbers[name] = getattr(self, name).encode()
        return numbers

    def tensors(self):
        """The optional tensors that were given, by the names of the C ABI's fields."""
        return {name: getattr(self, name) for name in TENSORS if getattr(self, name) is not None}


def integer(name, value, bits=63):
    """The value, if it fits into a signed number of 64 bits; 64 bits: or into one without sign."""
    if -(2**63) <= value < 2**bits:
        return value
    raise ValueError(f"{name} is {value}; it must be in -2^63..2^{bits} - 1")


def signed(value):
    """The same 64 bits as a number with a sign."""
    return value if value < 2**63 else value - 2**64


def choose(name, value, among):
    if value not in among:
        raise ValueError(f"{name} is {value!r}; it can be {', '.join(map(repr, among))}")
    return among[value]


_ALIGNMENTS = {
    None: ALIGNMENTS["unspecified"],
    "top_left": ALIGNMENTS["top_left"],
    "bottom_right": ALIGNMENTS["bottom_right"],
}


def alignment_number(alignment):
    return choose("causal_alignment", alignment, _ALIGNMENTS)


def window_sides(window):
    """(left, right), -1 for no limit, of None, a number for both sides, or two of them."""
    if window is None:
        return -1, -1
    left, right = window if isinstance(window, (tuple, list)) else (window, window)
    return -1 if left is None else int(left), -1 if right is None else int(right)


# What float32 rounds to 0, and to infinity.
_TOO_SMALL, _TOO_LARGE = 2.0**-150, (2 - 2.0**-24) * 2.0**127


def scale_number(scale):
    """The C ABI's 0 is the default; a caller's 0 is a mistake."""
    if scale is None:
        return 0.0
    if not _TOO_SMALL < scale < _TOO_LARGE:
        raise ValueError(f"scale is {scale}; it must be positive and a float32 (None: 1/sqrt(D))")
    return float(scale)
