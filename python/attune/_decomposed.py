"""The ops in torch's own functions, for graphs that others compute: plain torch.onnx.export.

The scores are a whole matrix here. Rows that see no key are 0, as everywhere; but a NaN in V
reaches the result even behind a mask."""

import torch

from ._arguments import ALIGNMENTS, RAGGED


def sdpa(q, k, v, mask=None, causal=False, scale=0.0, gqa=False, alignment=1, layout=0):
    return _attention(
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
    out, lse = _attention(
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


def _distance(queries, keys, alignment, device, key_lengths):
    """position(i) - j"""
    used = keys if key_lengths is None else key_lengths[:, None, None, None]
    shift = used - queries if alignment == ALIGNMENTS["bottom_right"] else 0
    rows = torch.arange(queries, device=device)[:, None] + shift
    return rows - torch.arange(keys, device=device)


def _attention(q, k, v, *, mask, causal, scale, alignment, layout, softcap=0.0, window=(-1, -1),
               alibi_slopes=None, sinks=None, key_lengths=None):  # fmt: skip
    dtype = q.dtype
    if layout == 1:
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    if key_lengths is not None:  # a weight of 0 would not hide what is not finite
        unused = torch.arange(k.shape[2], device=k.device) >= key_lengths[:, None]
        k, v = (t.masked_fill(unused[:, None, :, None], 0.0) for t in (k, v))
    q, k, v = (t.float() if t.dtype in (torch.float16, torch.bfloat16) else t for t in (q, k, v))
    group = q.shape[1] // k.shape[1]
    if group > 1:
        k, v = (
            t.unsqueeze(2).expand(-1, -1, group, -1, -1).reshape(t.shape[0], -1, *t.shape[2:])
            for t in (k, v)
        )
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
        away = _distance(queries, keys, alignment, q.device, key_lengths).abs()
        scores = scores - alibi_slopes[..., None, None] * away
    seen = allowed(queries, keys, causal, window, alignment, q.device, key_lengths)
    if seen is not None:
        scores = scores.masked_fill(~seen, nothing)
    largest = scores.amax(-1, keepdim=True)
    if sinks is not None:
        sink = sinks[:, None, None]
        largest = torch.maximum(largest, sink)
    largest = torch.where(largest == nothing, 0.0, largest)
    weights = torch.exp(scores - largest)
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(sink - largest)
    out = torch.matmul(weights / torch.where(total == 0, 1.0, total), v).to(dtype)
    lse = (torch.log(total) + largest).squeeze(-1)
    return (out.transpose(1, 2) if layout == 1 else out).contiguous(), lse  # as the ops return it
