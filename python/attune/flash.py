"""FlashAttention-2's functions: its argument names and order, [batch, seq, heads, dim], causal at
the bottom right."""

import torch

from ._arguments import Options
from ._torch import attention, needs_gradient


def _window(window_size):
    left, right = window_size
    return None if left < 0 else left, None if right < 0 else right


def _refuse(**arguments):
    for name, value in arguments.items():
        if value is not None:
            raise NotImplementedError(f"{name} is not supported yet")


def _result(result, wanted):
    # The third is FlashAttention's debug output of dropout, which no user may count on.
    return (*result, None) if wanted else result


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
):
    """q [B,Sq,H,D], k and v [B,Sk,Hkv,D]. Returns out [B,Sq,H,D]; with return_attn_probs also the
    log-sum-exp [B,H,Sq], and None where FlashAttention has the probabilities. Both passes are
    deterministic whatever `deterministic` says."""
    options = Options(
        is_causal=causal,
        causal_alignment="bottom_right",
        scale=softmax_scale,
        window=_window(window_size),
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        dropout_p=dropout_p,
        layout="bshd",
        return_lse=return_attn_probs,
    )
    return _result(attention(q, k, v, options), return_attn_probs)


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: torch.Tensor | None = None,
):
    """A ragged batch: q [tokens,H,D], k and v [tokens,Hkv,D], sequences one after another from
    cu_seqlens (int32, [B+1]). The log-sum-exp is [H,tokens]."""
    _refuse(block_table=block_table)
    options = Options(
        is_causal=causal,
        causal_alignment="bottom_right",
        scale=softmax_scale,
        window=_window(window_size),
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        dropout_p=dropout_p,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        return_lse=return_attn_probs,
    )
    return _result(attention(q, k, v, options), return_attn_probs)


def flash_attn_qkvpacked_func(qkv: torch.Tensor, *args, **options):
    """flash_attn_func of qkv [B,S,3,H,D]."""
    return flash_attn_func(*qkv.unbind(-3), *args, **options)


def flash_attn_kvpacked_func(q: torch.Tensor, kv: torch.Tensor, *args, **options):
    """flash_attn_func of q [B,Sq,H,D] and kv [B,Sk,2,Hkv,D]."""
    return flash_attn_func(q, *kv.unbind(-3), *args, **options)


def flash_attn_varlen_qkvpacked_func(
    qkv: torch.Tensor, cu_seqlens: torch.Tensor, max_seqlen: int, *args, **options
):
    """flash_attn_varlen_func of qkv [tokens,3,H,D]."""
    lengths = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    return flash_attn_varlen_func(*qkv.unbind(-3), *lengths, *args, **options)


def flash_attn_varlen_kvpacked_func(q: torch.Tensor, kv: torch.Tensor, *args, **options):
    """flash_attn_varlen_func of q [tokens,H,D] and kv [tokens,2,Hkv,D]."""
    return flash_attn_varlen_func(q, *kv.unbind(-3), *args, **options)


def _append(cache, new, lengths):
    """Writes the new rows behind each sequence's own, in place as FlashAttention does."""
    batch, count = new.shape[:2]
    rows = torch.arange(batch, device=new.device)[:, None].expand(batch, count)
    places = lengths[:, None] + torch.arange(count, device=new.device)
    cache[rows, places] = new.to(cache.dtype)


def _check_cache(q, k_cache, v_cache, k, v, lengths):
    batch, room, heads, dim = k_cache.shape
    if q.shape[0] != batch or v_cache.shape[:3] != k_cache.shape[:3]:
        shapes = ", ".join(str(tuple(t.shape)) for t in (q, k_cache, v_cache))
        raise ValueError(f"q, k_cache and v_cache do not fit together: {shapes}")
    if (k is None) != (v is None):
        raise ValueError("k and v come together, or not at all")
    count = 0
    if k is not None:
        if lengths is None:
            raise ValueError("with k and v, cache_seqlens says where they go")
        count = k.shape[1]
        wanted = [(batch, count, heads, dim), (batch, count, heads, v_cache.shape[3])]
        if [tuple(t.shape) for t in (k, v)] != wanted:
            raise ValueError(
                f"k and v are {tuple(k.shape)} and {tuple(v.shape)}; "
                f"the cache takes {wanted[0]} and {wanted[1]}"
            )
    if isinstance(lengths, torch.Tensor):
        if lengths.shape != (batch,) or lengths.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                f"cache_seqlens is {lengths.dtype} {tuple(lengths.shape)}, not int32 ({batch},)"
            )
        if lengths.is_cuda or torch.compiler.is_compiling():
            # Looking at them would wait for the GPU, or be a part of no graph; an index out of
            # range stops it.
            return
        least, most = lengths.min().item(), lengths.max().item()
    else:
        least = most = room - count if lengths is None else lengths
    if least < 0 or most + count > room:
        raise ValueError(
            f"cache_seqlens has {least} to {most}, and {count} more come: the cache has {room} rows"
        )


def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    rotary_cos: torch.Tensor | None = None,
    rotary_sin: torch.Tensor | None = None,
    cache_seqlens: int | torch.Tensor | None = None,
    cache_batch_idx: torch.Tensor | None = None,
    cache_leftpad: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: torch.Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
):
    """q [B,Sq,H,D] against a cache [B,S,Hkv,D] of which cache_seqlens rows hold keys; k and v,
    where given, are first written behind those, in place. Lengths on a GPU are read there alone:
    nothing waits for them. The library decides how the keys are split, whatever num_splits says."""
    _refuse(
        rotary_cos=rotary_cos,
        rotary_sin=rotary_sin,
        cache_batch_idx=cache_batch_idx,
        cache_leftpad=cache_leftpad,
        block_table=block_table,
    )
    # Everything is checked before anything is written: the cache is the caller's.
    if needs_gradient(q, k_cache, v_cache, k, v, alibi_slopes):
        raise NotImplementedError(
            "flash_attn_with_kvcache is for inference and has no backward pass: call it under "
            "torch.no_grad(), or on detached tensors; flash_attn_func records gradients"
        )
    _check_cache(q, k_cache, v_cache, k, v, cache_seqlens)
    lengths = k_cache.shape[1] if cache_seqlens is None else cache_seqlens
    if k is not None:
        at = torch.as_tensor(lengths, device=q.device).expand(q.shape[0])
        _append(k_cache, k, at)
        _append(v_cache, v, at)
        lengths = lengths + k.shape[1]
    options = Options(
        is_causal=causal,
        causal_alignment="bottom_right",
        scale=softmax_scale,
        window=_window(window_size),
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        layout="bshd",
        return_lse=return_softmax_lse,
    )
    if isinstance(lengths, torch.Tensor):
        options.key_lengths = lengths.to(torch.int32)
        return attention(q, k_cache, v_cache, options)
    return attention(q, k_cache[:, :lengths], v_cache[:, :lengths], options)
