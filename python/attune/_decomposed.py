"""The ops in torch's own functions: for graphs that others compute (plain torch.onnx.export), and
for gradients of what torch's own attention does not have.

The scores are a whole matrix here. Rows that see no key are 0, as everywhere; but a NaN in V
reaches the result even behind a mask."""

import torch

from ._arguments import ALIGNMENTS, RAGGED


def sdpa(q, k, v, mask=None, causal=False, scale=0.0, gqa=False, alignment=1, layout=0):
    return whole(
        q, k, v, mask=mask, causal=causal, scale=scale, alignment=alignment, layout=layout
    )[0]


def attention(q, k, v, mask=None, block_mask=None, alibi_slopes=None, sinks=None, *, scale=0.0,
              softcap=0.0, causal=False, alignment=0, window_left=-1, window_right=-1, layout=0,
              want_lse=False, key_lengths=None, **rest):  # fmt: skip
    refused = {
        "block_mask": block_mask is not None,
        "a ragged batch": layout == RAGGED,
        "dropout_p": rest.get("dropout_p", 0) > 0,
        "score_mod": bool(rest.get("score_mod")),
        "mask_mod": bool(rest.get("mask_mod")),
    }
    for name, given in refused.items():
        if given:
            raise NotImplementedError(f"attune cannot export {name} to ONNX")
    if key_lengths is not None:
        key_lengths = within(key_lengths, k, layout)
    out, lse = whole(
        q,
        k,
        v,
        mask=mask,
        causal=causal,
        scale=scale,
        alignment=alignment,
        layout=layout,
        softcap=softcap,
        window=(window_left, window_right),
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        key_lengths=key_lengths,
    )
    return out, (lse if want_lse else lse.new_empty(0))


def within(key_lengths, k, layout):
    """The lengths as all below takes them: one outside of 0..Sk counts as the nearer end."""
    return key_lengths.clamp(0, k.shape[1 if layout == 1 else 2])


def allowed(queries, keys, causal, window, alignment, device=None, key_lengths=None):
    """[queries, keys], with key_lengths [batch, 1, queries, keys]: what these, the causal limit and
    the window let through; None: everything."""
    distance = _distance(queries, keys, alignment, device, key_lengths)
    limits = []
    if key_lengths is not None:
        limits.append(torch.arange(keys, device=device) < key_lengths[:, None, None, None])
    if causal:
        limits.append(distance >= 0)
    if window[0] >= 0:
        limits.append(distance <= window[0])
    if window[1] >= 0:
        limits.append(distance >= -window[1])
    if not limits:
        return None
    seen = limits[0]
    for limit in limits[1:]:
        seen = seen & limit
    return seen


def alibi(slopes, queries, keys, alignment, device, key_lengths=None):
    """What is added to the scores: the slope times the distance."""
    return -slopes[..., None, None] * _distance(queries, keys, alignment, device, key_lengths).abs()


def without_unused(k, v, key_lengths):
    """Zeros for the keys past each sequence's length: a weight of 0 would not hide what is not
    finite."""
    unused = torch.arange(k.shape[2], device=k.device) >= key_lengths[:, None]
    return (t.masked_fill(unused[:, None, :, None], 0.0) for t in (k, v))


def working_dtype(q):
    """What scores and LSE are computed in, as in the library; sinks and slopes are given in it."""
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _distance(queries, keys, alignment, device, key_lengths):
    """position(i) - j"""
    used = keys if key_lengths is None else key_lengths[:, None, None, None]
    shift = used - queries if alignment == ALIGNMENTS["bottom_right"] else 0
    rows = torch.arange(queries, device=device)[:, None] + shift
    return rows - torch.arange(keys, device=device)


def whole(q, k, v, *, mask, causal, scale, alignment, layout, softcap=0.0, window=(-1, -1),
          alibi_slopes=None, sinks=None, key_lengths=None, dropout_p=0.0):  # fmt: skip
    """(out, lse) by the definition."""
    dtype, kind = q.dtype, working_dtype(q)
    if layout == 1:
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    if key_lengths is not None:
        k, v = without_unused(k, v, key_lengths)
    q, k, v = (t.to(kind) for t in (q, k, v))
    group = q.shape[1] // k.shape[1]
    if group > 1:
        k, v = (t.unsqueeze(2).expand(-1, -1, group, -1, -1).flatten(1, 2) for t in (k, v))
    queries, keys = q.shape[2], k.shape[2]
    scores = torch.matmul(q, k.transpose(2, 3)) * (scale or q.shape[3] ** -0.5)
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    nothing = float("-inf")
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, nothing)
    elif mask is not None:
        scores = scores + mask
    if alibi_slopes is not None:
        slopes = alibi_slopes.to(kind)
        scores = scores + alibi(slopes, queries, keys, alignment, q.device, key_lengths)
    seen = allowed(queries, keys, causal, window, alignment, q.device, key_lengths)
    if seen is not None:
        scores = scores.masked_fill(~seen, nothing)
    # Without a gradient: whatever is subtracted here is added or divided out again.
    if keys == 0:  # no number is the largest of none
        largest = scores.new_full((*scores.shape[:3], 1), nothing)
    else:
        largest = scores.detach().amax(-1, keepdim=True)
    if sinks is not None:
        sink = sinks.to(kind)[:, None, None]
        largest = torch.maximum(largest, sink.detach())
    largest = torch.where(largest == nothing, 0.0, largest)
    weights = torch.exp(scores - largest)
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(sink - largest)
    # A row without keys is 0, and so are its gradients.
    empty = total == 0
    total = torch.where(empty, 1.0, total)
    weights = weights / total
    if dropout_p > 0:
        weights = torch.dropout(weights, dropout_p, True)
    out = torch.matmul(weights, v).to(dtype)
    lse = torch.where(empty, nothing, torch.log(total) + largest).squeeze(-1)
    return (out.transpose(1, 2) if layout == 1 else out).contiguous(), lse  # as the ops return it
