"""torch's own attention, for the recorded calls that attune has no backward pass for."""

import warnings
from dataclasses import replace

import torch
from torch.autograd import forward_ad
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from . import _decomposed
from ._arguments import Options, alignment_number, scale_number, window_sides
from ._library import InvalidArgument

TORCHS = functional.scaled_dot_product_attention
NO_GRADIENTS = "attune has no backward pass"
WITHOUT = "call it under torch.no_grad(), or on detached tensors"
_warned = False


@torch.compiler.assume_constant_result  # a compiled function warns when it is traced
def warn_once(why):
    """`why`: of _gradients.why_not."""
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            f"{NO_GRADIENTS} {why}: torch computes this call, and every other like it that records "
            f"gradients. For attune's kernels {WITHOUT}. This is said once a process.",
            stacklevel=3,
        )
    return True


def _torchs(*args):
    if forward_ad._current_level < 0:
        return TORCHS(*args[:6], scale=args[6], enable_gqa=args[7])
    with sdpa_kernel(SDPBackend.MATH):  # the only one of torch's with forward mode
        return TORCHS(*args[:6], scale=args[6], enable_gqa=args[7])


def sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, why):
    warn_once(why)
    if attn_mask is not None and is_causal and type(attn_mask) is torch.Tensor:
        here = Options(mask=attn_mask, is_causal=True, causal_alignment="top_left")
        attn_mask, is_causal = _mask(query, key, here), False  # torch takes one of the two
    return _torchs(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _refuse(o, why):
    """Never something else than what was asked for."""
    beyond = {
        "ragged batches": o.ragged(),
        "float64 reference": o.mode == "reference",
        "dropout of a given seed": o.dropout_p and o.dropout_seed is not None,
        "block_mask": o.block_mask is not None,
        "score_mod": o.score_mod,
        "mask_mod": o.mask_mod,
        "batch_invariant": o.batch_invariant,
    }
    for what, asked in beyond.items():
        if asked:
            raise NotImplementedError(f"{NO_GRADIENTS} {why}, and torch has no {what}: {WITHOUT}")


def _checked_lengths(q, k, o):
    """o's key lengths, refused as the library refuses them. Where the host would have to wait for
    the numbers, or there are none yet, one outside of 0..Sk counts as the nearer end."""
    lengths, layout = o.key_lengths, o.layout_number()
    if lengths.ndim != 1:
        raise InvalidArgument(f"key_lengths.rank is {lengths.ndim}; expected 1")
    if lengths.shape[0] != q.shape[0]:
        raise InvalidArgument(
            f"key_lengths.shape[0] is {lengths.shape[0]}, but q.shape[0] is {q.shape[0]}"
        )
    keys = k.shape[1 if layout == 1 else 2]
    if torch.compiler.is_compiling() and lengths.device.type == "cpu":
        fit = ((lengths >= 0) & (lengths <= keys)).all()
        torch._assert_async(fit, "one of key_lengths is outside of 0 to Sk")
    elif lengths.device.type == "cpu":
        for b, length in enumerate(_numbers(lengths)):
            if not 0 <= length <= keys:
                raise InvalidArgument(f"key_lengths[{b}] is {length}, but k.shape[2] is {keys}")
    return _decomposed.within(lengths, k, layout)


def _numbers(t):
    try:
        return t.tolist()
    except RuntimeError:  # mapped by vmap, or without data
        return []


def _need_alignment(rows, keys, o):
    placed = o.is_causal or max(window_sides(o.window)) >= 0 or o.alibi_slopes is not None
    differ = rows != keys or o.key_lengths is not None
    if placed and differ and o.causal_alignment is None:
        raise ValueError(f"Sq is {rows} and Sk is {keys}: causal_alignment must be named")


def _mask(q, k, o):
    """Mask, causality, window and slopes as one mask, boolean or additive; None: there is none."""
    window = window_sides(o.window)
    mask = o.mask
    placed = o.is_causal or max(window) >= 0 or o.alibi_slopes is not None
    if not placed and o.key_lengths is None:
        return mask
    rows, keys = q.shape[-2], k.shape[-2]
    alignment = alignment_number(o.causal_alignment)
    place = (alignment, q.device, o.key_lengths)
    keep = _decomposed.allowed(rows, keys, o.is_causal, window, *place)
    if mask is not None and mask.dtype == torch.bool:
        keep, mask = mask if keep is None else keep & mask, None
    if o.alibi_slopes is not None:
        slopes = _decomposed.alibi(o.alibi_slopes, rows, keys, *place)
        mask = slopes if mask is None else mask + slopes
    if mask is None or keep is None:
        return keep if mask is None else mask
    return mask.masked_fill(~keep, -torch.inf)


def _all_scores(q, k, v, o):
    """(out, lse), for what torch's own attention does not have."""
    return _decomposed.whole(
        q,
        k,
        v,
        mask=o.mask,
        causal=o.is_causal,
        scale=scale_number(o.scale),
        alignment=alignment_number(o.causal_alignment),
        layout=o.layout_number(),
        softcap=o.softcap,
        window=window_sides(o.window),
        alibi_slopes=o.alibi_slopes,
        sinks=o.sinks,
        key_lengths=o.key_lengths,
        dropout_p=o.dropout_p,
    )


def _settled(q, k, v, o: Options, why):
    """The options of a call that is not refused here; torch may still refuse it."""
    _refuse(o, why)
    o.check(q, k, v)
    scale_number(o.scale)
    if o.key_lengths is not None:
        o = replace(o, key_lengths=_checked_lengths(q, k, o))
    at = 2 if o.layout_number() == 0 else 1
    _need_alignment(q.shape[at], k.shape[at], o)
    return o


def explain(q, k, v, o: Options, why):
    """What attention() does with the same arguments, in the form of the library's explanation."""
    _settled(q, k, v, o, why)
    return {
        "computed_by": "torch",
        "chosen": "",
        "mode": "none",
        "config": "",
        "candidates": [],
        "reason": f"an input requires gradients, and {NO_GRADIENTS} {why}: {WITHOUT}",
    }


def attention(q, k, v, o: Options, why):
    o = _settled(q, k, v, o, why)
    scale = scale_number(o.scale) or None  # to torch a 0 is no default
    warn_once(why)
    if o.softcap or o.sinks is not None or o.return_lse:
        out, lse = _all_scores(q, k, v, o)
        return (out, lse) if o.return_lse else out
    bshd = o.layout_number() == 1
    if bshd:
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    if o.key_lengths is not None:
        k, v = _decomposed.without_unused(k, v, o.key_lengths)
    square = q.shape[2] == k.shape[2] or o.causal_alignment == "top_left"
    flag = o.is_causal and square and o.window is None and o.alibi_slopes is None
    flag = flag and o.mask is None and o.key_lengths is None
    mask = None if flag else _mask(q, k, o)
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(q.dtype)
    # A constant, in functions compiled with dynamic shapes too.
    gqa = True if q.shape[1] != k.shape[1] else False  # noqa: SIM210
    out = _torchs(q, k, v, mask, o.dropout_p, flag, scale, gqa)
    return out.transpose(1, 2) if bshd else out
