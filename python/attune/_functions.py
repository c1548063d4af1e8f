"""The functions that take torch tensors, NumPy arrays and DLPack alike."""

import sys
from typing import Any

import numpy as np

from . import _arrays, _library
from ._arguments import Options


def version():
    return _library.load().version()


_torch_module = None  # imported with the first tensor: NumPy's users need no torch
_Tensor: type | tuple = ()  # torch.Tensor, from then on


def _torch_for(array):
    """The functions for torch tensors, if this is one; whoever has a tensor has imported torch."""
    global _torch_module, _Tensor
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(array, torch.Tensor):
        return None
    if _torch_module is None:
        from . import _torch

        _torch_module, _Tensor = _torch, torch.Tensor
    return _torch_module


def attention(
    q,
    k,
    v,
    *,
    mask: Any = None,
    is_causal: bool = False,
    causal_alignment: str | None = None,
    scale: float | None = None,
    window: Any = None,
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    sinks: Any = None,
    dropout_p: float = 0.0,
    dropout_seed: int | None = None,
    dropout_offset: int = 0,
    enable_gqa: bool = True,
    block_mask: Any = None,
    block_size: tuple[int, int] = (128, 128),
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    key_lengths: Any = None,
    score_mod: str | None = None,
    mask_mod: str | None = None,
    user_data: Any = None,
    mode: str = "auto",
    layout: str = "bhsd",
    return_lse: bool = False,
    strict_fp32: bool = False,
    batch_invariant: bool = False,
):
    """softmax(scale q kᵀ + ...) v.

    q [B,H,Sq,D], k [B,Hkv,Sk,D], v [B,Hkv,Sk,Dv] (layout="bshd": heads after the sequence), or all
    without B, or without B and H. float32, float16 or bfloat16; float64 on the CPU, slowly, by the
    reference, and then slopes, sinks and lse are float64 too. Ragged batches: q [tokens,H,D], with
    cu_seqlens_q and cu_seqlens_k.

    mask              boolean (True keeps) or additive, broadcast to [B,H,Sq,Sk]
    is_causal         row i sees the keys up to its own
    causal_alignment  "top_left" (torch) or "bottom_right" (FlashAttention): where row i stands
                      among the keys; to be named as soon as Sq and Sk differ
    scale             of the scores; None: 1/sqrt(D)
    window            keys at most so far away: a number, or (left, right), None for no limit
    softcap           softcap * tanh(score / softcap); 0: off
    alibi_slopes      float32 [H] or [B,H]: adds -slope * distance
    sinks             float32 [H]: a logit that joins the denominator
    dropout_p         with dropout_seed and dropout_offset: the same bits on every backend
    enable_gqa        whether groups of query heads may share a key head
    block_mask        boolean, broadcast to [B,H,ceil(Sq/bq),ceil(Sk/bk)], with block_size (bq, bk)
    key_lengths       int32 [B]: how many keys of each sequence are used, for instance of a cache;
                      "bottom_right" then counts from the last of these. On a GPU nobody waits for
                      them: a number beyond 0..Sk counts as the nearer of the two
    score_mod, mask_mod, user_data   C++ text in the inner loop (CUDA); docs/adding-a-kernel.md
    mode              auto, reference, naive, tiled, fused, mma, wgmma
    return_lse        also the logarithm of the denominators, float32 [B,H,Sq] (ragged: [H,tokens])
    strict_fp32       float32 stays on CUDA cores
    batch_invariant   a sequence's bits do not depend on the rest of the batch

    Returns a new array of q's kind: out, or (out, lse). Of torch tensors q, k, v, an additive mask
    and sinks have gradients, through lse too.
    """
    options = Options(
        mask=mask,
        is_causal=is_causal,
        causal_alignment=causal_alignment,
        scale=scale,
        window=window,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        dropout_p=dropout_p,
        dropout_seed=dropout_seed,
        dropout_offset=dropout_offset,
        enable_gqa=enable_gqa,
        block_mask=block_mask,
        block_size=block_size,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        key_lengths=key_lengths,
        score_mod=score_mod,
        mask_mod=mask_mod,
        user_data=user_data,
        mode=mode,
        layout=layout,
        return_lse=return_lse,
        strict_fp32=strict_fp32,
        batch_invariant=batch_invariant,
    )
    return _run(q, k, v, options)


def _missing(q, k, v, options):
    """How many leading dimensions of [B,H,S,D] are left out: [S,D] is one head, [H,S,D] a batch of
    one."""
    rank = getattr(q, "ndim", 4)
    if rank not in (2, 3) or options.ragged() or options.layout != "bhsd":
        return 0
    return 4 - rank if rank == k.ndim == v.ndim else 0


def _run(q, k, v, options):
    if missing := _missing(q, k, v, options):
        result = _run(*(t[(None,) * missing] for t in (q, k, v)), options)
        first = (0,) * missing
        return (result[0][first], result[1][first]) if options.return_lse else result[first]
    if (torch_functions := _torch_for(q)) is not None:
        return torch_functions.attention(q, k, v, options)
    if isinstance(q, np.ndarray):
        return _arrays.NumpyCall(q, k, v, options).run()
    if hasattr(q, "__dlpack__"):
        return _arrays.dlpack_attention(q, k, v, options)
    raise TypeError(f"q is a {type(q).__name__}: neither a torch tensor, a NumPy array nor DLPack")


def scaled_dot_product_attention(
    query,
    key,
    value,
    attn_mask=None,
    dropout_p=0.0,
    is_causal=False,
    scale=None,
    enable_gqa=False,
):
    """torch.nn.functional.scaled_dot_product_attention: the same arguments, the same meaning."""
    torch_functions = _torch_module if isinstance(query, _Tensor) else _torch_for(query)
    if torch_functions is not None:
        return torch_functions.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa
        )
    options = Options(
        mask=attn_mask,
        dropout_p=dropout_p,
        is_causal=is_causal,
        causal_alignment="top_left",
        scale=scale,
        enable_gqa=enable_gqa,
    )
    if isinstance(query, np.ndarray):
        return _arrays.scaled_dot_product_attention(query, key, value, options)
    return _run(query, key, value, options)


def reference_attention(q, k, v, **options):
    """The same by plain float64 loops on the CPU: slow, and what every kernel is compared with."""
    return attention(q, k, v, **{**options, "mode": "reference"})


def explain(q, k, v, *, backward=False, **options):
    """Which kernel attention() would run for these arguments, and why no other, as a dict. Its
    "computed_by" is "attune", or "torch" for a call that attention() leaves to torch.
    backward=True (torch tensors): which one the backward pass of that call would run."""
    options = Options(**options)
    if _torch_for(q) is None and not isinstance(q, np.ndarray) and hasattr(q, "__dlpack__"):
        _, q, k, v, options = _arrays.from_dlpack(q, k, v, options)
    if missing := _missing(q, k, v, options):
        q, k, v = (t[(None,) * missing] for t in (q, k, v))
    if (torch_functions := _torch_for(q)) is not None:
        said = torch_functions.explain(q, k, v, options, backward)
    elif backward:
        raise TypeError(f"q is a {type(q).__name__}: the backward pass is for torch tensors")
    else:
        said = _library.load().explain(_arrays.NumpyCall(q, k, v, options).args)
    return {"computed_by": "attune", **said}


def info():
    """What the library found on this machine, and whether torch's functions are there."""
    facts = _library.load().info()
    try:
        from . import _torch

        facts["torch"] = {"usable": not _torch.WHY_NOT, "why": _torch.WHY_NOT}
    except ImportError as error:
        facts["torch"] = {"usable": False, "why": f"{error}: {_library.torch_advice()}"}
    return facts
