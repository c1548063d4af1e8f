"""Export to ONNX: attention becomes the standard Attention operator (opset 23), which any runtime
may compute as it likes."""

import torch

from . import _torch
from ._arguments import ALIGNMENTS, LAYOUTS

OPSET = 23


def _translation():
    from onnxscript.onnx_opset import opset23 as op

    def sdpa(
        q, k, v, mask, causal: bool, scale: float, gqa: bool, alignment: int = 1, layout: int = 0
    ):
        attributes = {"is_causal": int(causal)}
        if scale:
            attributes["scale"] = scale
        rows = -2 if layout == LAYOUTS["bhsd"] else -3
        if (
            causal
            and alignment == ALIGNMENTS["bottom_right"]
            and q.shape[rows] != k.shape[rows]  # one square: both diagonals are the same
        ):
            raise NotImplementedError("ONNX's Attention is causal from the top left alone")
        if layout == LAYOUTS["bhsd"]:
            return op.Attention(q, k, v, mask, **attributes)[0]
        q, k, v = (op.Transpose(t, perm=[0, 2, 1, 3]) for t in (q, k, v))
        return op.Transpose(op.Attention(q, k, v, mask, **attributes)[0], perm=[0, 2, 1, 3])

    return {torch.ops.attune.sdpa.default: sdpa, torch.ops.attune.sdpa_nograd.default: sdpa}


def export(model: torch.nn.Module, args: tuple, path, **options):
    """torch.onnx.export(model, args, path, ...) for a model that calls
    attune.scaled_dot_product_attention, or attune.attention with what ONNX knows: mask, is_causal,
    scale, layout. Returns torch's ONNXProgram."""
    _torch.need_ops()
    options.setdefault("opset_version", OPSET)
    if options["opset_version"] < OPSET:
        raise ValueError(f"the Attention operator needs opset {OPSET}")
    table = {**_translation(), **options.pop("custom_translation_table", {})}
    with torch.no_grad():
        return torch.onnx.export(
            model, args, path, dynamo=True, custom_translation_table=table, **options
        )
