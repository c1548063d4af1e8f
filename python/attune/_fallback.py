"""torch's own attention, for the calls that record gradients: attune has no backward pass yet."""

import warnings

import torch
from torch.autograd import forward_ad
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from ._arguments import Options, window_sides

TORCHS = functional.scaled_dot_product_attention
NO_GRADIENTS = "attune has no backward pass for torch yet"
WITHOUT = "call it under torch.no_grad(), or on detached tensors"
_warned = False


@torch.compiler.assume_constant_result  # a compiled function warns when it is traced
def warn_once():
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            f"{NO_GRADIENTS}: torch computes this call, and every other whose inputs require "
            f"gradients. For attune's kernels {WITHOUT}. This is said once a process.",
            stacklevel=3,
        )
    return True


def refusal(what):
    return NotImplementedError(f"{NO_GRADIENTS}, and torch has no {what}: {WITHOUT}")


def _torchs(*args):
    if forward_ad._current_level < 0:
        return TORCHS(*args[:6], scale=args[6], enable_gqa=args[7])
    with sdpa_kernel(SDPBackend.MATH):  # the only one of torch's with forward mode
        return TORCHS(*args[:6], scale=args[6], enable_gqa=args[7])


def sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa):
    warn_once()
    if attn_mask is not None and is_causal and type(attn_mask) is torch.Tensor:
        here = Options(mask=attn_mask, is_causal=True, causal_alignment="top_left")
        attn_mask, is_causal = _mask(query, key, here), False  # torch takes one of the two
    return _torchs(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _refuse(o):
    """Never something else than what was asked for."""
    if o.ragged():
        raise refusal("ragged batches")
    if o.mode == "reference":
        raise refusal("float64 reference")
    if o.dropout_p and o.dropout_seed is not None:
        raise refusal("dropout of a given seed")
    for name in ("block_mask", "score_mod", "mask_mod", "batch_invariant"):
        if getattr(o, name):
            raise refusal(name)


def _band(distance, left, right):
    """Which keys are near enough, -1 for no limit; None: all."""
    keep = None
    if left >= 0:
        keep = distance >= -left
    if right >= 0:
        near = distance <= right
        keep = near if keep is None else keep & near
    return keep


def _mask(q, k, o):
    """Mask, causality, window and slopes as one mask, boolean or additive; None: there is none."""
    left, right = window_sides(o.window)
    right = 0 if o.is_causal else right
    mask = o.mask
    placed = max(left, right) >= 0 or o.alibi_slopes is not None
    if not placed and o.key_lengths is None:
        return mask
    rows, keys = q.shape[-2], k.shape[-2]
    if placed and o.causal_alignment is None and (rows != keys or o.key_lengths is not None):
        raise ValueError(f"Sq is {rows} and Sk is {keys}: causal_alignment must be named")
    used = keys if o.key_lengths is None else o.key_lengths[:, None, None, None]
    first = used - rows if o.causal_alignment == "bottom_right" else 0
    at = torch.arange(rows, device=q.device)[:, None] + first
    j = torch.arange(keys, device=q.device)
    distance = j - at
    keep = _band(distance, left, right)
    if o.key_lengths is not None:
        keep = j < used if keep is None else keep & (j < used)
    if mask is not None and mask.dtype == torch.bool:
        keep, mask = mask if keep is None else keep & mask, None
    if o.alibi_slopes is not None:
        slopes = -o.alibi_slopes[..., None, None] * distance.abs()
        mask = slopes if mask is None else mask + slopes
    if mask is None or keep is None:
        return keep if mask is None else mask
    return mask.masked_fill(~keep, -torch.inf)


def _plain(q, k, v, o):
    """(out, lse) by the definition, all scores in memory."""
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    s = (q @ k.mT).float() * (q.shape[-1] ** -0.5 if o.scale is None else o.scale)
    if o.softcap:
        s = o.softcap * torch.tanh(s / o.softcap)
    mask = _mask(q, k, o)
    if mask is not None and mask.dtype == torch.bool:
        s = s.masked_fill(~mask, -torch.inf)
    elif mask is not None:
        s = s + mask
    columns = s.shape[-1]
    if o.sinks is not None:
        s = torch.cat([s, o.sinks.float()[:, None, None].expand(*s.shape[:3], 1)], -1)
    lse = torch.logsumexp(s, -1)
    # A row without keys is 0, and so are its gradients: there is no NaN to come from it.
    empty = (s == -torch.inf).all(-1, keepdim=True)
    p = torch.softmax(s.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)[..., :columns]
    p = functional.dropout(p, o.dropout_p)
    return p.to(v.dtype) @ v, lse


def attention(q, k, v, o: Options):
    _refuse(o)
    o.check(q, k, v)
    warn_once()
    bshd = o.layout_number() == 1
    if bshd:
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    if o.key_lengths is not None:  # a weight of 0 would not hide what is not finite
        unused = torch.arange(k.shape[2], device=k.device) >= o.key_lengths[:, None]
        k, v = (t.masked_fill(unused[:, None, :, None], 0.0) for t in (k, v))
    lse = None
    if o.softcap or o.sinks is not None or o.return_lse:
        out, lse = _plain(q, k, v, o)
    else:
        square = q.shape[2] == k.shape[2] or o.causal_alignment == "top_left"
        flag = o.is_causal and square and o.window is None and o.alibi_slopes is None
        flag = flag and o.mask is None and o.key_lengths is None
        mask = None if flag else _mask(q, k, o)
        if mask is not None and mask.dtype != torch.bool:
            mask = mask.to(q.dtype)
        gqa = q.shape[1] != k.shape[1]
        out = _torchs(q, k, v, mask, o.dropout_p, flag, o.scale, gqa)
    if bshd:
        out = out.transpose(1, 2)
    return (out, lse) if o.return_lse else out
