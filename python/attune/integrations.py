"""Attune where people already have attention: in torch's own function, and in Transformers."""

import threading
from collections import Counter

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from . import _torch
from ._arguments import Options

_TORCHS = functional.scaled_dot_product_attention
_REFUSALS = (NotImplementedError, ValueError, RuntimeError)


class sdpa(TorchFunctionMode):  # noqa: N801 - used as a function: with attune.sdpa():
    """with attune.sdpa() as routed: torch's scaled_dot_product_attention is ours where it can be.

    What we refuse goes to torch as before; routed.taken, routed.left (reasons and how often) and
    routed.report() say what became of the calls. nn.MultiheadAttention is seen, but for its fused
    path in eval mode, which does not call the function."""

    def __init__(self):
        super().__init__()
        self.taken = 0
        self.left = Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is functional.multi_head_attention_forward:
            return self._inside(func, args, kwargs)
        if func is not _TORCHS:
            return func(*args, **kwargs)
        return self._route(*args, **kwargs)

    def _route(self, *args, **kwargs):
        foreign = {type(t) for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)}
        foreign -= {torch.Tensor, torch.nn.Parameter}
        try:
            query = args[0] if args else kwargs.get("query")
            if getattr(query, "dtype", None) == torch.float64:
                raise NotImplementedError("dtype float64: attune has its slow reference alone")
            if foreign:
                raise NotImplementedError(f"an argument is a {min(t.__name__ for t in foreign)}")
            with torch._C.DisableTorchFunction():
                out = _torch.scaled_dot_product_attention(*args, **kwargs)
        except _REFUSALS as why:
            self.left[str(why).splitlines()[0]] += 1
            return _TORCHS(*args, **kwargs)
        self.taken += 1
        return out

    def _inside(self, func, args, kwargs):
        """This function is torch's own Python, and no mode is on while it runs: it finds us where
        it looks for scaled_dot_product_attention. Other threads' calls go where they went."""
        here = threading.get_ident()

        def routed(*args, **kwargs):
            mine = threading.get_ident() == here
            return (self._route if mine else _TORCHS)(*args, **kwargs)

        functional.scaled_dot_product_attention = routed
        try:
            return func(*args, **kwargs)
        finally:
            functional.scaled_dot_product_attention = _TORCHS

    def report(self) -> str:
        lines = [f"{self.taken} calls by attune, {sum(self.left.values())} by torch"]
        lines += [f"  {count} left: {why}" for why, count in self.left.most_common()]
        return "\n".join(lines)


def _transformers_attention(
    module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None, **kwargs
):
    """[B,H,S,D] in, [B,S,H,D] out, as Transformers asks for it."""
    if kwargs.get("position_bias") is not None:
        raise NotImplementedError("attune does not take Transformers' position_bias yet")
    queries, keys = query.shape[2], key.shape[2]
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    # A mask has all of it; without one, a single query is the last row, which sees every key.
    is_causal = queries > 1 and attention_mask is None and is_causal
    if is_causal and keys > queries:  # a static cache, filled from the front
        key, value = key[:, :, :queries], value[:, :, :queries]
    sinks = kwargs.get("s_aux")
    options = Options(
        mask=attention_mask,
        is_causal=is_causal,
        causal_alignment="top_left",
        scale=scaling,
        softcap=kwargs.get("softcap") or 0.0,
        sinks=None if sinks is None else sinks.float(),
        dropout_p=dropout,
    )
    out = _torch.attention(query, key, value, options)
    return out.transpose(1, 2).contiguous(), None


def register_transformers(name: str = "attune") -> str:
    """Makes attn_implementation="attune" and model.set_attn_implementation("attune") work.

    The attention and its mask are registered together: without the mask, Transformers would drop
    causality and padding without a word."""
    _torch.need_ops()
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(name, _transformers_attention)
    AttentionMaskInterface.register(name, sdpa_mask)
    return name
