"""Export to ONNX: attention becomes the standard Attention operator (opset 23), which any runtime
may compute as it likes.

torch.onnx.export itself needs nothing of this: there attention becomes torch's own functions, in
every opset."""

import torch

from . import _torch
from ._arguments import ALIGNMENTS, LAYOUTS, RAGGED

OPSET = 23
WINDOW_OPSET = 25  # from here on the operator has windows; before, they are a mask


def _translation(opset):
    from onnxscript import onnx_opset, values

    op = onnx_opset.opset23

    # By the schema of the installed onnx: onnxscript's own list of attributes may be older.
    with_windows = values.Op(onnx_opset.opset25, "Attention")

    def length(t, axis):
        return op.Squeeze(op.Shape(t, start=axis, end=axis + 1))

    def seen(q, k, causal, window, bottom_right, key_lengths):
        """The boolean mask of key lengths, causal limit and window."""
        zero, one = op.Constant(value_int=0), op.Constant(value_int=1)
        queries, keys = length(q, 2), length(k, 2)
        j = op.Range(zero, keys, one)
        used, limits = keys, []
        if key_lengths is not None:
            used = op.Reshape(op.CastLike(key_lengths, zero),
                              op.Constant(value_ints=[-1, 1, 1, 1]))  # fmt: skip
            used = op.Min(op.Max(used, zero), keys)  # one outside counts as the nearer end
            # With every row: onnxruntime broadcasts no mask over them.
            every = op.Concat(op.Shape(q, start=2, end=3), op.Constant(value_ints=[1]), axis=0)
            limits.append(op.Expand(op.Less(j, used), every))
        rows = op.Unsqueeze(op.Range(zero, queries, one), op.Constant(value_ints=[1]))
        if bottom_right:
            rows = op.Add(rows, op.Sub(used, queries))
        distance = op.Sub(rows, j)
        if causal:
            limits.append(op.GreaterOrEqual(distance, zero))
        if window[0] >= 0:
            limits.append(op.LessOrEqual(distance, op.Constant(value_int=window[0])))
        if window[1] >= 0:
            limits.append(op.GreaterOrEqual(distance, op.Constant(value_int=-window[1])))
        mask = limits[0]
        for limit in limits[1:]:
            mask = op.And(mask, limit)
        return mask

    def both(mask, limit, boolean):
        if mask is None:
            return limit
        if boolean:
            return op.And(mask, limit)
        return op.Where(limit, mask, op.CastLike(op.Constant(value_float=float("-inf")), mask))

    def attend(q, k, v, mask, *, causal, scale, alignment, layout, softcap=0.0, window=(-1, -1),
               key_lengths=None):  # fmt: skip
        sequence = 2 if layout == LAYOUTS["bhsd"] else 1
        # One square: both diagonals are the same. ONNX's operator has the one from the top left.
        square = q.shape[sequence] == k.shape[sequence] and key_lengths is None
        bottom_right = alignment == ALIGNMENTS["bottom_right"] and not square
        boolean = mask is not None and mask.dtype is not None and mask.dtype.name == "BOOL"
        if layout == LAYOUTS["bshd"]:
            q, k, v = (op.Transpose(t, perm=[0, 2, 1, 3]) for t in (q, k, v))
        attributes = {}
        if scale:
            attributes["scale"] = scale
        if softcap:
            attributes["softcap"] = softcap
        operator = op.Attention
        by_mask = bottom_right or key_lengths is not None
        if by_mask or (window != (-1, -1) and opset < WINDOW_OPSET):
            mask = both(mask, seen(q, k, causal, window, bottom_right, key_lengths), boolean)
        else:
            attributes["is_causal"] = int(causal)
            if window != (-1, -1):
                operator = with_windows
                attributes["left_window_size"], attributes["right_window_size"] = window
        out = operator(q, k, v, mask, **attributes)[0]
        return out if layout == LAYOUTS["bhsd"] else op.Transpose(out, perm=[0, 2, 1, 3])

    def sdpa(
        q,
        k,
        v,
        mask=None,
        causal: bool = False,
        scale: float = 0.0,
        gqa: bool = False,
        alignment: int = 1,
        layout: int = 0,
    ):
        return attend(q, k, v, mask, causal=causal, scale=scale, alignment=alignment, layout=layout)

    def attention(q, k, v, mask=None, block_mask=None, alibi_slopes=None, sinks=None,
                  cu_seqlens_q=None, cu_seqlens_k=None, key_lengths=None, user_data=None,
                  scale: float = 0.0, softcap: float = 0.0, causal: bool = False,
                  alignment: int = 0,
                  window_left: int = -1, window_right: int = -1, block_q: int = 0, block_k: int = 0,
                  max_seq_q: int = 0, max_seq_k: int = 0, dropout_p: float = 0.0, seed: int = 0,
                  offset: int = 0, mode: int = 0, layout: int = 0, strict_fp32: bool = False,
                  batch_invariant: bool = False, want_lse: bool = False, score_mod: str = "",
                  mask_mod: str = ""):  # fmt: skip
        refused = {
            "block_mask": block_mask is not None,
            "alibi_slopes": alibi_slopes is not None,
            "sinks": sinks is not None,
            "a ragged batch": layout == RAGGED,
            "dropout_p": dropout_p > 0,
            "return_lse": want_lse,
            "score_mod": bool(score_mod),
            "mask_mod": bool(mask_mod),
        }
        for name, given in refused.items():
            if given:
                raise NotImplementedError(f"ONNX's Attention operator has no {name}")
        out = attend(
            q,
            k,
            v,
            mask,
            causal=causal,
            scale=scale,
            alignment=alignment,
            layout=layout,
            softcap=softcap,
            window=(window_left, window_right),
            key_lengths=key_lengths,
        )
        return out, op.Constant(value_floats=[])

    ops = torch.ops.attune
    return {
        ops.sdpa.default: sdpa,
        ops.sdpa_nograd.default: sdpa,
        ops.attention.default: attention,
    }


def export(model: torch.nn.Module, args: tuple, path, **options):
    """torch.onnx.export(model, args, path, ...) for a model that calls
    attune.scaled_dot_product_attention, or attune.attention with what ONNX's Attention operator
    knows: mask, is_causal, scale, softcap, window, key_lengths, layout. Returns torch's
    ONNXProgram.

    Key lengths are a mask in the graph. So is a window; with opset_version=25 it is the operator's
    own."""
    _torch.need_ops()
    opset = options.setdefault("opset_version", OPSET)
    if opset < OPSET:
        raise ValueError(f"the Attention operator needs opset {OPSET}")
    table = {**_translation(opset), **options.pop("custom_translation_table", {})}
    _torch.onnx_operator = True
    try:
        with torch.no_grad():
            return torch.onnx.export(
                model, args, path, dynamo=True, custom_translation_table=table, **options
            )
    finally:
        _torch.onnx_operator = False
