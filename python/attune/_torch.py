"""Attention on torch tensors: the ops, what torch must know of them, and the call."""

import json
from dataclasses import replace

import torch
from torch.autograd import forward_ad

from . import _decomposed, _fallback, _gradients, _library
from ._arguments import RAGGED, Options, alignment_number, scale_number, signed
from ._errors import error_of as _error_of
from ._gradients import has_tangent, in_order_of

WHY_NOT = ""  # why the ops are not there; empty: they are
_TOP_LEFT = alignment_number("top_left")
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)  # of the library, and so is
_MOST_DIM = 256
# Looked up once: a tiny call spends as long on finding them as on asking.
_has_torch_function = torch.overrides.has_torch_function_variadic
_Tensor = torch.Tensor
_PLAIN_MASKS = (type(None), _Tensor)
_is_grad_enabled = torch.is_grad_enabled
_is_any_autocast_enabled = torch._C._is_any_autocast_enabled
_is_compiling = torch.compiler.is_compiling


def _load():
    path = _library.find("_torch_ops.so")
    if path is None:
        made = "this build has no torch ops: it was made by a Python without torch 2.10 or later"
        return f"{made}; {_library.torch_advice()}"
    try:
        _library.load()  # by its own path, before the ops ask for it by name
        torch.ops.load_library(str(path))
    except (OSError, ImportError) as error:
        return f"{path} cannot be loaded: {error}"
    return ""


WHY_NOT = _load()
if not WHY_NOT:
    _sdpa, _sdpa_nograd = torch.ops.attune.sdpa.default, torch.ops.attune.sdpa_nograd.default
    _attention = torch.ops.attune.attention.default
    _sdpa_now = getattr(_sdpa_nograd, "_op", _sdpa_nograd)  # the same, past a function in Python
    # Whoever calls sdpa_nograd needs no gradient: it has no business in autograd, whose fallback
    # would only hand it on.
    _below_autograd = torch.library.Library("attune", "IMPL")
    _below_autograd.impl("sdpa_nograd", torch.library.fallthrough_kernel, "Autograd")

    def _same_device(q, *tensors):
        for t in tensors:
            if isinstance(t, torch.Tensor) and t.device != q.device:
                raise RuntimeError(f"attune: a tensor is on {t.device}, and q on {q.device}")

    def _fake_sdpa(q, k, v, mask=None, causal=False, scale=0.0, gqa=False, alignment=1, layout=0):
        _same_device(q, k, v, mask)
        lead = q.shape[:-1]
        if not gqa and q.dim() == k.dim() == v.dim() == 4:
            lead = (*torch.broadcast_shapes(*(t.shape[:2] for t in (q, k, v))), q.shape[2])
        return in_order_of(q, (*lead, v.shape[-1]))

    # The op's options, from its schema, and the value that leaves one out.
    _STANDARD = {a.name: a.default_value for a in _attention._schema.arguments[3:]}

    def _fake_attention(q, k, v, *tensors, layout=0, want_lse=False, **rest):
        _same_device(q, k, v, *tensors, *rest.values())
        out = in_order_of(q, (*q.shape[:-1], v.shape[-1]))
        rows = (0,)
        if want_lse and layout == RAGGED:
            rows = (q.shape[1], q.shape[0])
        elif want_lse:
            rows = (q.shape[0], q.shape[1], q.shape[2])
            rows = (rows[0], rows[2], rows[1]) if layout == 1 else rows
        kind = torch.float64 if q.dtype == torch.float64 else torch.float32
        return out, q.new_empty(rows, dtype=kind)

    # The same as attune::attention, but for its seed, which is a tensor: a graph that held the
    # number would drop the same weights in every run. Its backward pass drops the same ones.
    _ours = torch.library.Library("attune", "FRAGMENT")

    def _define_drawn(name, op, first):
        """`op` with the tensor behind its `first` arguments."""
        schema = str(op._schema).replace(f"attune::{op._opname}(", f"{name}(")
        schema = schema.replace("Tensor v, ", "Tensor v, Tensor drawn, ")
        _ours.define(schema, tags=torch.Tag.cudagraph_unsafe)

        def run(*args, **options):
            options = {**options, "seed": int(args[first])}
            return op(*args[:first], *args[first + 1 :], **options)

        _ours.impl(name, run, "CompositeExplicitAutograd")
        return getattr(torch.ops.attune, name).default

    _attention_random = _define_drawn("attention_random", _attention, 3)
    _define_drawn("attention_random_backward", torch.ops.attune.attention_backward.default, 7)

    def _fake_random(q, k, v, drawn, *tensors, **options):
        return _fake_attention(q, k, v, *tensors, **options)

    def _map_sdpa(info, in_dims, q, k, v, mask=None, *rest):
        """The mapped dimension joins the batch."""
        count = info.batch_size
        given = [
            t.movedim(dim, 0) if dim is not None else t.expand(count, *t.shape)
            for t, dim in zip((q, k, v), in_dims, strict=False)
        ]
        batch = max(t.shape[1] for t in given)  # one may stand for all
        q, k, v = (t.expand(-1, batch, *t.shape[2:]).flatten(0, 1) for t in given)
        if mask is not None:
            mask = mask.movedim(in_dims[3], 0) if in_dims[3] is not None else mask[None]
            while mask.dim() < 5:
                mask = mask.unsqueeze(1)
            mask = mask.expand(count, batch, *mask.shape[2:]).flatten(0, 1)
        out = _sdpa(q, k, v, mask, *rest)
        return out.unflatten(0, (count, batch)), 0

    def _map_attention(info, in_dims, *args, **keywords):
        raise NotImplementedError(
            "under vmap attention has a mask, is_causal, scale and layout alone: for the rest "
            "let the mapped dimension join the batch"
        )

    for _name, _fake, _map in (
        ("attune::sdpa", _fake_sdpa, _map_sdpa),
        ("attune::sdpa_nograd", _fake_sdpa, _map_sdpa),
        ("attune::attention", _fake_attention, _map_attention),
        ("attune::attention_random", _fake_random, _map_attention),
    ):
        torch.library.register_fake(_name, _fake)
        torch.library.register_vmap(_name, _map)
    _gradients.register()


def need_ops():
    if WHY_NOT:
        raise ImportError(f"attune's torch functions are not available: {WHY_NOT}")


def needs_gradient(*tensors):
    """Whether torch records this call: never a silent detach. A graph for ONNX computes none."""
    if torch.onnx.is_in_onnx_export():
        return False
    recording, dual = _is_grad_enabled(), forward_ad._current_level >= 0
    for t in tensors:
        if t is None:
            continue
        if not isinstance(t, _Tensor):
            raise TypeError(f"q is a torch tensor, and so must be the rest; one is a {type(t)}")
        if (recording and t.requires_grad) or (dual and has_tangent(t)):
            return True
    return False


def why_not(query, key, value):
    """Why the library would refuse these, as far as a compiled function can ask."""
    for name, t in (("query", query), ("key", key), ("value", value)):
        if t.dtype not in _DTYPES:
            return f"the dtype of {name} is {t.dtype}, not float32, float16 or bfloat16"
        if t.shape[-1] > _MOST_DIM:
            return f"{name} has head dimension {t.shape[-1]}, and {_MOST_DIM} is the most"
    return ""


def autocast(*tensors):
    """As torch's own attention: under autocast, its dtype."""
    kind = tensors[0].device.type
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    kept = (torch.float64, dtype)
    return tuple(
        t.to(dtype) if t.is_floating_point() and t.dtype not in kept else t for t in tensors
    )


onnx_operator = False  # attune.onnx.export: the graph keeps the ops


def _in_plain_onnx_export():
    """Whether torch.onnx.export records a graph that must do without our ops."""
    return torch.onnx.is_in_onnx_export() and not onnx_operator


def _graph_sdpa(*args):
    return _decomposed.sdpa(*args) if _in_plain_onnx_export() else _sdpa(*args)


def _call_sdpa(*args):
    try:
        return (_graph_sdpa if torch.compiler.is_compiling() else _sdpa_nograd)(*args)
    except RuntimeError as error:
        raise _error_of(error) from None


def _call_attention(op, recorded, *args, **keywords):
    """A call that needs no gradient is made below autograd, whose half of the op is in Python."""
    if torch.compiler.is_compiling():
        return (_decomposed.attention if _in_plain_onnx_export() else op)(*args, **keywords)
    try:
        if recorded:
            given = {name: keywords.pop(name, None) for name in _gradients.TENSORS}
            return _gradients.record(op, args, given, keywords)
        with torch._C._AutoDispatchBelowAutograd():
            return op(*args, **keywords)
    except RuntimeError as error:
        raise _error_of(error) from None


def _diagonal(mask):
    """What torch.nn.attention.bias' causal masks say: they are tensors without the numbers."""
    if type(mask).__name__ != "CausalBias":
        return None
    lower_right = mask.variant.name == "LOWER_RIGHT"
    return "bottom_right" if lower_right else "top_left"


def _records(q, k, v, o):
    """Whether torch records the call, in whatever way."""
    if not _is_grad_enabled() and forward_ad._current_level < 0:
        return False
    return needs_gradient(q, k, v, o.mask, o.alibi_slopes, o.sinks)


def _why_torch_records(q, k, v, o):
    return _gradients.why_not(q, k, v, o.mask, o.sinks, slopes=o.alibi_slopes)


def _to_record(q, k, v, o):
    """The call that computes what the backward pass reads."""
    if not o.enable_gqa and q.ndim == k.ndim == v.ndim == 4:
        q, k, v = _gradients.broadcast((q, k, v), (0,))
    return q, k, v, replace(o, return_lse=True)


def attention(q, k, v, o: Options):
    if WHY_NOT:
        need_ops()
    if torch.overrides.has_torch_function((q, k, v)):
        return torch.overrides.handle_torch_function(attention, (q, k, v), q, k, v, o)
    if (alignment := _diagonal(o.mask)) is not None:
        o = replace(o, mask=None, is_causal=True, causal_alignment=alignment)
    recorded, return_lse = _records(q, k, v, o), o.return_lse
    if recorded:
        if why := _why_torch_records(q, k, v, o):
            return _fallback.attention(q, k, v, o, why)
        q, k, v, o = _to_record(q, k, v, o)
    arguments, keywords = _op_arguments(q, k, v, o)
    if keywords is None:
        return _call_sdpa(*arguments)
    op = _attention
    if o.dropout_p > 0 and o.dropout_seed is None and not _in_plain_onnx_export():
        op = _attention_random
        arguments = (*arguments, torch.randint(2**62, (1,), device="cpu"))
    out, lse = _call_attention(op, recorded, *arguments, **keywords)
    return (out, lse) if return_lse else out


def _op_arguments(q, k, v, o: Options):
    """The op's arguments, and its keywords; None: the op with few arguments can say it."""
    if torch._C._is_any_autocast_enabled():
        q, k, v = autocast(q, k, v)
    o.check(q, k, v)
    if o.is_plain():
        rest = (o.enable_gqa, alignment_number(o.causal_alignment), o.layout_number())
        return (q, k, v, o.mask, o.is_causal, scale_number(o.scale), *rest), None
    n = o.numbers()
    given = {
        "mask": o.mask,
        "block_mask": o.block_mask,
        "alibi_slopes": o.alibi_slopes,
        "sinks": o.sinks,
        "cu_seqlens_q": o.cu_seqlens_q,
        "cu_seqlens_k": o.cu_seqlens_k,
        "key_lengths": o.key_lengths,
        "user_data": o.user_data,
        "scale": n["scale"],
        "softcap": n["softcap"],
        "causal": o.is_causal,
        "alignment": n["alignment"],
        "window_left": n["window_left"],
        "window_right": n["window_right"],
        "block_q": n.get("block_mask_q", 0),
        "block_k": n.get("block_mask_k", 0),
        "max_seq_q": o.max_seqlen_q,
        "max_seq_k": o.max_seqlen_k,
        "dropout_p": n["dropout_p"],
        "seed": signed(o.dropout_seed or 0),  # the op's integers have a sign
        "offset": signed(n["dropout_offset"]),
        "mode": n["mode"],
        "layout": o.layout_number(),
        "strict_fp32": o.strict_fp32,
        "batch_invariant": o.batch_invariant,
        "want_lse": o.return_lse,
        "score_mod": o.score_mod or "",
        "mask_mod": o.mask_mod or "",
    }
    return (q, k, v), {
        name: value
        for name, value in given.items()
        if isinstance(value, _Tensor) or value != _STANDARD[name]
    }


def _explain_backward(arguments, keywords, tensors):
    """Of the gradients that are asked for, or of those of q, k and v."""
    wanted = {f"want_d{name}": t is not None and t.requires_grad for name, t in tensors.items()}
    if any(wanted.values()):
        keywords = {**keywords, **wanted}
    keywords = {name: value for name, value in keywords.items() if name != "want_lse"}
    return json.loads(torch.ops.attune.explain_backward(*arguments, **keywords))


def explain(q, k, v, o: Options, backward=False):
    """By the code that makes the call, up to the call itself: it cannot be another one. Nothing is
    allocated but what the call would copy, and no random number is drawn."""
    need_ops()
    if (alignment := _diagonal(o.mask)) is not None:
        o = replace(o, mask=None, is_causal=True, causal_alignment=alignment)
    if backward or _records(q, k, v, o):
        if why := _why_torch_records(q, k, v, o):
            return _fallback.explain(q, k, v, o, why)
        q, k, v, o = _to_record(q, k, v, o)
    arguments, keywords = _op_arguments(q, k, v, o)
    ops = torch.ops.attune
    try:
        if backward:
            tensors = {"q": q, "k": k, "v": v, "mask": o.mask, "sinks": o.sinks}
            return _explain_backward(arguments, keywords, tensors)
        if keywords is None:
            return json.loads(ops.explain_sdpa(*arguments))
        return json.loads(ops.explain_attention(*arguments, **keywords))
    except RuntimeError as error:
        raise _error_of(error) from None


def _four(query, key, value, mask):
    """All with four dimensions: batch (whatever leads, broadcast), heads, rows, numbers."""
    given = (query, key, value)
    if min(t.dim() for t in given) < 2:
        raise ValueError("query, key and value need at least 2 dimensions")
    rank = max(4, *(t.dim() for t in given))
    padded = [t[(None,) * (rank - t.dim())] for t in given]
    lead = torch.broadcast_shapes(*(t.shape[:-3] for t in padded))
    four = [t.expand(*lead, *t.shape[-3:]).flatten(0, -4) for t in padded]
    if mask is not None and mask.dim() > (4 if len(lead) == 1 else 2):
        heads = max(t.shape[-3] for t in padded)
        mask = mask.expand(*lead, heads, query.shape[-2], key.shape[-2]).flatten(0, -4)
    return four, mask, lead


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
    # Few questions, cheap ones first: a short call is over before many are asked.
    if WHY_NOT:
        need_ops()
    if _has_torch_function(query, key, value):
        return torch.overrides.handle_torch_function(
            scaled_dot_product_attention,
            (query, key, value),
            *(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa),
        )
    recorded = False
    if forward_ad._current_level >= 0 or (
        _is_grad_enabled()
        and not (
            type(key) is type(value) is _Tensor
            and (attn_mask is None or (type(attn_mask) is _Tensor and not attn_mask.requires_grad))
            and not (query.requires_grad or key.requires_grad or value.requires_grad)
        )
    ):
        if recorded := needs_gradient(query, key, value, attn_mask):
            if why := _gradients.why_not(query, key, value, attn_mask):
                return _fallback.sdpa(
                    query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, why
                )
    if _is_any_autocast_enabled():
        query, key, value = autocast(query, key, value)
    if scale is None:
        number = 0.0
    elif type(scale) is float and 1e-30 < scale < 1e30:  # surely a float32
        number = scale
    else:
        number = scale_number(scale)
    alignment = _TOP_LEFT
    # A plain tensor, and None, say nothing of a diagonal.
    if type(attn_mask) not in _PLAIN_MASKS and (diagonal := _diagonal(attn_mask)) is not None:
        attn_mask, is_causal, alignment = None, True, alignment_number(diagonal)
    if dropout_p == 0.0 and not recorded and query.ndim == key.ndim == value.ndim:
        if query.ndim == 4:
            try:
                op = _graph_sdpa if _is_compiling() else _sdpa_now
                # Arguments at their defaults are left out: each one costs as much as a question.
                if enable_gqa or alignment != _TOP_LEFT:
                    rest = (attn_mask, is_causal, number, enable_gqa, alignment)
                elif number != 0.0:
                    rest = (attn_mask, is_causal, number)
                elif is_causal or attn_mask is not None:
                    rest = (attn_mask, is_causal)
                else:
                    rest = ()
                return op(query, key, value, *rest)
            except RuntimeError as error:
                raise _error_of(error) from None
        if query.ndim == 3 and not enable_gqa:  # what leads are the heads of a batch of one
            four = (t.unsqueeze(0) for t in (query, key, value))
            return _call_sdpa(*four, attn_mask, is_causal, number, False, alignment).squeeze(0)
    if not 0 <= dropout_p < 1:
        raise ValueError(f"dropout_p is {dropout_p}; it can be 0 to less than 1")
    rank = max(query.dim(), key.dim(), value.dim())
    (q, k, v), attn_mask, lead = _four(query, key, value, attn_mask)
    if dropout_p == 0 and not recorded:
        out = _call_sdpa(q, k, v, attn_mask, is_causal, number, enable_gqa, alignment)
    else:
        if not enable_gqa:
            q, k, v = _gradients.broadcast((q, k, v), (1,))
        options = Options(
            mask=attn_mask,
            is_causal=is_causal,
            causal_alignment="bottom_right" if alignment != _TOP_LEFT else "top_left",
            scale=scale,
            dropout_p=dropout_p,
            enable_gqa=enable_gqa,
        )
        out = attention(q, k, v, options)
    shape = (*lead, *out.shape[1:])  # of as many dimensions as were given
    return out.reshape(shape[len(shape) - rank :])
