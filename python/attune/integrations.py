"""Attune where people already have attention: in torch's own function, and in Transformers."""

import threading
import weakref
from collections import Counter

import torch
from torch.nn import functional
from torch.nn.attention.bias import CausalBias
from torch.overrides import TorchFunctionMode

from . import _fallback, _gradients, _torch
from ._arguments import Options
from ._decomposed import working_dtype
from ._fallback import TORCHS

_REFUSALS = (NotImplementedError, ValueError, RuntimeError)
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _restricted():
    """Whether sdpa_kernel, or torch.backends.cuda.enable_..._sdp, turned a backend off."""
    return not (
        torch._C._get_flash_sdp_enabled()
        and torch._C._get_mem_efficient_sdp_enabled()
        and torch._C._get_math_sdp_enabled()
        and torch._C._get_cudnn_sdp_enabled()
    )


def _why_torch(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **rest):
    """Why a call is torch's, as far as it can be seen beforehand. A compiled function can ask
    nothing else: when the op refuses, the graph is already made."""
    if _restricted():
        return "the choice of torch's backends is restricted (sdpa_kernel)"
    if isinstance(attn_mask, CausalBias) and not is_causal:
        attn_mask = None
    for t in (query, key, value, attn_mask):
        if isinstance(t, torch.Tensor) and type(t) not in _PLAIN:
            return f"an argument is a {type(t).__name__}"
    if _torch.needs_gradient(query, key, value, attn_mask) and (
        why := _gradients.why_not(query, key, value, attn_mask)
    ):
        _fallback.warn_once(why)
        return f"{_fallback.NO_GRADIENTS} {why}"
    return _torch.why_not(query, key, value)


# torch's own modules that call scaled_dot_product_attention, or compute attention in a fused path.
_MODULES = (
    torch.nn.MultiheadAttention,
    torch.nn.TransformerEncoder,
    torch.nn.TransformerEncoderLayer,
)


class _Inside:
    """Routes the calls that torch's own Python makes, of this thread, while no mode is on: it finds
    us where it looks for scaled_dot_product_attention."""

    _lock = threading.Lock()
    _thread = threading.local()
    _count = 0
    _before = None

    def __init__(self, mode):
        self.mode = mode

    @classmethod
    def _call(cls, *args, **kwargs):
        mode = getattr(cls._thread, "mode", None)
        return (cls._before if mode is None else mode._route)(*args, **kwargs)

    def __enter__(self):
        cls = type(self)
        with cls._lock:
            if cls._count == 0:
                cls._before = functional.scaled_dot_product_attention
                functional.scaled_dot_product_attention = cls._call
            cls._count += 1
        self.outer = getattr(cls._thread, "mode", None)
        cls._thread.mode = self.mode

    def __exit__(self, *error):
        cls = type(self)
        cls._thread.mode = self.outer
        with cls._lock:
            cls._count -= 1
            if cls._count == 0:
                functional.scaled_dot_product_attention = cls._before


class _Modules:
    """torch's modules take no fused path while a mode is on. So they are called without ours, as
    long as there is an sdpa object, and their calls of the function are routed."""

    _lock = threading.Lock()
    _count = 0

    @staticmethod
    def _call(module, *args, **kwargs):
        modes = torch._C._len_torch_function_stack()
        mode = torch._C._get_function_stack_at(modes - 1) if modes else None
        if torch.compiler.is_compiling() or not isinstance(mode, sdpa):
            return torch.nn.Module.__call__(module, *args, **kwargs)
        before = mode.calls()
        with torch.overrides._pop_mode_temporarily(), _Inside(mode):
            out = torch.nn.Module.__call__(module, *args, **kwargs)
        if mode.calls() == before:
            mode.left[f"the fused path of {type(module).__name__}"] += 1
        return out

    @classmethod
    def hold(cls):
        with cls._lock:
            cls._count += 1
            for module in _MODULES:
                module.__call__ = cls._call

    @classmethod
    def release(cls):
        with cls._lock:
            cls._count -= 1
            if cls._count == 0:
                for module in _MODULES:
                    del module.__call__


class sdpa(TorchFunctionMode):  # noqa: N801 - used as a function: with attune.sdpa():
    """with attune.sdpa() as routed: torch's scaled_dot_product_attention is ours where it can be.

    What we refuse goes to torch as before, and so do recorded calls that we have no backward pass
    for and calls inside torch.nn.attention.sdpa_kernel. routed.taken, routed.left (reasons and how
    often) and routed.report() say what became of the calls. nn.MultiheadAttention is seen (not in a
    compiled function); the fused paths that it and nn.TransformerEncoder take in eval mode stay
    torch's."""

    def __init__(self):
        super().__init__()
        self.taken = 0
        self.left = Counter()
        if not torch.compiler.is_compiling():
            _Modules.hold()
            weakref.finalize(self, _Modules.release)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is TORCHS:
            return self._route(*args, **kwargs)
        if func is not functional.multi_head_attention_forward:
            return func(*args, **kwargs)
        if torch.compiler.is_compiling():
            self.left["multi_head_attention_forward in a compiled function"] += 1
            return func(*args, **kwargs)
        with _Inside(self):
            return func(*args, **kwargs)

    def _route(self, *args, **kwargs):
        why = _why_torch(*args, **kwargs)
        if not why:
            try:
                with torch._C.DisableTorchFunction():
                    out = _torch.scaled_dot_product_attention(*args, **kwargs)
                self.taken += 1
                return out
            except _REFUSALS as refusal:
                why = str(refusal).splitlines()[0]
        self.left[why] += 1
        return TORCHS(*args, **kwargs)

    def calls(self):
        return self.taken + sum(self.left.values())

    def report(self) -> str:
        lines = [f"{self.taken} calls by attune, {sum(self.left.values())} by torch"]
        lines += [f"  {count} left: {why}" for why, count in self.left.most_common()]
        return "\n".join(lines)


def _joined(mask, bias):
    """A bias, and what Transformers has as a mask, as one mask."""
    if mask is None:
        return bias
    return torch.where(mask, bias, -torch.inf) if mask.dtype == torch.bool else mask + bias


def _transformers_attention(
    module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None, **kwargs
):
    """[B,H,S,D] in, [B,S,H,D] out, as Transformers asks for it."""
    queries, keys = query.shape[2], key.shape[2]
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    # A mask has all of it; without one, a single query is the last row, which sees every key.
    is_causal = True if queries > 1 and attention_mask is None and is_causal else False
    bias = kwargs.get("position_bias")  # [1 or B,H,Sq,Sk], added to the scores
    if is_causal and keys > queries:  # a static cache, filled from the front
        key, value = key[:, :, :queries], value[:, :, :queries]
        bias = None if bias is None else bias[..., :queries]
    if bias is not None:
        attention_mask = _joined(attention_mask, bias)
    sinks = kwargs.get("s_aux")
    options = Options(
        mask=attention_mask,
        is_causal=is_causal,
        causal_alignment="top_left",
        scale=scaling,
        softcap=kwargs.get("softcap") or 0.0,
        sinks=None if sinks is None else sinks.to(working_dtype(query)),
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
