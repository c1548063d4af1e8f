"""Modules, and the names under which this kind of function is known elsewhere."""

from dataclasses import replace

import torch
from torch import nn

from . import _torch
from ._arguments import Options
from ._decomposed import working_dtype
from ._functions import scaled_dot_product_attention
from .linear import Linear


class Attention(nn.Module):
    """attune.attention with its options set once. forward(q, k, v, mask=None, is_causal=None).
    Tensors among the options are buffers: they move with the module."""

    def __init__(self, *, is_causal: bool = False, **options):
        super().__init__()
        self.options = Options(is_causal=is_causal, **options)
        for name, value in vars(self.options).items():
            if isinstance(value, torch.Tensor):
                self.register_buffer(name, value)
                setattr(self.options, name, None)

    def forward(self, q, k, v, mask=None, is_causal=None):
        options = replace(self.options, **dict(self.named_buffers()))
        for name in ("sinks", "alibi_slopes"):  # whatever the module was cast to
            if (value := getattr(options, name)) is not None:
                setattr(options, name, value.to(working_dtype(q)))
        options.mask = mask if mask is not None else options.mask
        options.is_causal = options.is_causal if is_causal is None else is_causal
        return _torch.attention(q, k, v, options)

    def extra_repr(self):
        plain = vars(Options())
        return ", ".join(f"{k}={v!r}" for k, v in vars(self.options).items() if v != plain[k])


class MultiheadSelfAttention(nn.Module):
    """Causal self-attention with one projection for q, k and v: x [B,T,n_embd] to the same shape.

    The heads are never brought together by a copy: attention reads them where the projection left
    them, and writes them where the next projection reads them."""

    def __init__(self, n_embd: int, n_head: int, *, bias: bool = True, is_causal: bool = True):
        super().__init__()
        if n_embd % n_head != 0:
            raise ValueError(f"n_embd is {n_embd}, which {n_head} heads cannot share")
        self.n_head, self.is_causal = n_head, is_causal
        self.c_attn = Linear(n_embd, 3 * n_embd, bias=bias)
        self.c_proj = Linear(n_embd, n_embd, bias=bias)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.c_attn(x).view(batch, length, 3, self.n_head, width // self.n_head)
        options = Options(is_causal=self.is_causal, layout="bshd")
        q, k, v = qkv.unbind(2)
        out = _torch.attention(q, k, v, options)
        return self.c_proj(out.view(batch, length, width))


def cuda_attention_forward(Q, K, V, mode="tiled", mask=None, is_causal=False, scale=0.0):  # noqa: N803
    """Attention of [B,H,S,D] tensors by a mode: auto, reference, naive, tiled, fused, mma or wgmma.
    scale 0: 1/sqrt(D). An additive mask [B,H,Sq,Sk]: -inf hides a key."""
    options = Options(
        mode=mode,
        mask=mask,
        is_causal=is_causal,
        causal_alignment="top_left",
        scale=scale if scale else None,
    )
    return _torch.attention(Q, K, V, options)


class CUDAAttention(nn.Module):
    """cuda_attention_forward as a module."""

    def __init__(self, mode: str = "tiled"):
        super().__init__()
        self.mode = mode

    def forward(self, Q, K, V, mask=None, is_causal=False, scale=0.0):  # noqa: N803
        return cuda_attention_forward(Q, K, V, self.mode, mask, is_causal, scale)

    def extra_repr(self):
        return f"mode={self.mode!r}"


def run_flash(Q, K, V):  # noqa: N803
    """One head: Q [N,d], K [M,d], V [M,d] to [N,d]."""
    for name, t in (("Q", Q), ("K", K), ("V", V)):
        if t.ndim != 2:
            raise ValueError(f"{name} has {t.ndim} dimensions; run_flash takes matrices")
    return scaled_dot_product_attention(*(t[None, None] for t in (Q, K, V)))[0, 0]
