"""Attention on torch tensors: the ops, what torch must know of them, and the call."""

from dataclasses import replace

import torch
from torch.autograd import forward_ad

from . import _library
from ._arguments import RAGGED, Options, alignment_number, scale_number

WHY_NOT = ""  # why the ops are not there; empty: they are
NO_GRADIENTS = (
    "attune has no backward pass for torch yet: call it under torch.no_grad() or on detached "
    "tensors, or use torch's scaled_dot_product_attention for training"
)
_TOP_LEFT = alignment_number("top_left")
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
        return "this build has no torch ops: it was made by a Python without torch 2.10 or later"
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

    @torch.library.register_fake("attune::sdpa")
    @torch.library.register_fake("attune::sdpa_nograd")
    def _(q, k, v, mask=None, causal=False, scale=0.0, gqa=False, alignment=1, layout=0):
        _same_device(q, k, v, mask)
        lead = q.shape[:-1]
        if not gqa and q.dim() == k.dim() == v.dim() == 4:
            lead = (*torch.broadcast_shapes(*(t.shape[:2] for t in (q, k, v))), q.shape[2])
        return q.new_empty((*lead, v.shape[-1]))

    @torch.library.register_fake("attune::attention")
    def _(q, k, v, *rest):
        _same_device(q, k, v, *rest)
        layout, want_lse = rest[21], rest[24]  # of the op's arguments after v
        out = q.new_empty((*q.shape[:-1], v.shape[-1]))
        rows = (0,)
        if want_lse and layout == RAGGED:
            rows = (q.shape[1], q.shape[0])
        elif want_lse:
            rows = (q.shape[0], q.shape[1], q.shape[2])
            rows = (rows[0], rows[2], rows[1]) if layout == 1 else rows
        return out, q.new_empty(rows, dtype=torch.float32)

    def _no_backward(ctx, *gradients):
        raise NotImplementedError(NO_GRADIENTS)

    # For who reaches the ops past our functions, in an exported program for one.
    torch.library.register_autograd("attune::sdpa", _no_backward)
    torch.library.register_autograd("attune::attention", _no_backward)

    @torch.library.register_vmap("attune::sdpa")
    @torch.library.register_vmap("attune::sdpa_nograd")
    def _(info, in_dims, q, k, v, mask=None, *rest):
        """The mapped dimension joins the batch."""
        count = info.batch_size

        def joined(t, dim):
            t = t.movedim(dim, 0) if dim is not None else t.expand(count, *t.shape)
            return t.flatten(0, 1)

        if mask is not None:
            mask = mask.movedim(in_dims[3], 0) if in_dims[3] is not None else mask[None]
            while mask.dim() < 5:
                mask = mask.unsqueeze(1)
        q, k, v = (joined(t, dim) for t, dim in zip((q, k, v), in_dims, strict=False))
        if mask is not None:
            mask = mask.expand(count, q.shape[0] // count, *mask.shape[2:]).flatten(0, 1)
        out = _sdpa(q, k, v, mask, *rest)
        return out.unflatten(0, (count, -1)), 0

    @torch.library.register_vmap("attune::attention")
    def _(info, in_dims, *args):
        raise NotImplementedError(
            "under vmap attention has a mask, is_causal, scale and layout alone: for the rest "
            "let the mapped dimension join the batch"
        )


def need_ops():
    if WHY_NOT:
        raise ImportError(f"attune's torch functions are not available: {WHY_NOT}")


def refuse_gradients(*tensors):
    """Never a silent detach: what needs a gradient is told that there is none yet."""
    recording, dual = _is_grad_enabled(), forward_ad._current_level >= 0
    for t in tensors:
        if t is None:
            continue
        if not isinstance(t, _Tensor):
            raise TypeError(f"q is a torch tensor, and so must be the rest; one is a {type(t)}")
        if (recording and t.requires_grad) or (dual and _has_tangent(t)):
            raise NotImplementedError(NO_GRADIENTS)


def _has_tangent(t):
    return forward_ad.unpack_dual(t).tangent is not None


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


def _call_sdpa(*args):
    """The library's refusals become the package's exceptions."""
    try:
        return (_sdpa if torch.compiler.is_compiling() else _sdpa_nograd)(*args)
    except RuntimeError as error:
        raise _library.error_of(error) from None


def _call_attention(*args):
    """Below autograd, whose half of the op is in Python: a call that came here needs none of it."""
    if torch.compiler.is_compiling():
        return _attention(*args)
    try:
        with torch._C._AutoDispatchBelowAutograd():
            return _attention(*args)
    except RuntimeError as error:
        raise _library.error_of(error) from None


def _diagonal(mask):
    """What torch.nn.attention.bias' causal masks say: they are tensors without the numbers."""
    if type(mask).__name__ != "CausalBias":
        return None
    lower_right = mask.variant.name == "LOWER_RIGHT"
    return "bottom_right" if lower_right else "top_left"


def attention(q, k, v, o: Options):
    if WHY_NOT:
        need_ops()
    if torch.overrides.has_torch_function((q, k, v)):
        return torch.overrides.handle_torch_function(attention, (q, k, v), q, k, v, o)
    if torch.is_grad_enabled() or forward_ad._current_level >= 0:
        refuse_gradients(q, k, v, o.mask, o.alibi_slopes, o.sinks)
    if torch._C._is_any_autocast_enabled():
        q, k, v = autocast(q, k, v)
    o.check(q, k, v)
    if (alignment := _diagonal(o.mask)) is not None:
        o = replace(o, mask=None, is_causal=True, causal_alignment=alignment)
    if o.is_plain():
        return _call_sdpa(
            q,
            k,
            v,
            o.mask,
            o.is_causal,
            scale_number(o.scale),
            o.enable_gqa,
            alignment_number(o.causal_alignment),
            o.layout_number(),
        )
    seed = o.dropout_seed
    if o.dropout_p > 0 and seed is None:
        if torch.compiler.is_compiling():
            raise ValueError("dropout in a compiled function needs a dropout_seed")
        seed = int(torch.randint(2**62, (1,)))
    n = o.numbers()
    seed = seed or 0
    out, lse = _call_attention(
        q,
        k,
        v,
        o.mask,
        o.block_mask,
        o.alibi_slopes,
        o.sinks,
        o.cu_seqlens_q,
        o.cu_seqlens_k,
        o.user_data,
        n["scale"],
        n["softcap"],
        o.is_causal,
        n["alignment"],
        n["window_left"],
        n["window_right"],
        n.get("block_mask_q", 0),
        n.get("block_mask_k", 0),
        o.max_seqlen_q,
        o.max_seqlen_k,
        n["dropout_p"],
        seed if seed < 2**63 else seed - 2**64,  # the op's integers have a sign
        o.dropout_offset,
        n["mode"],
        o.layout_number(),
        o.strict_fp32,
        o.batch_invariant,
        o.return_lse,
        o.score_mod or "",
        o.mask_mod or "",
    )
    return (out, lse) if o.return_lse else out


def explain(q, k, v, o: Options):
    """Shapes and strides say enough: nothing is allocated but what the call would copy."""
    q, k, v = (
        t if t.shape[-1:] == (1,) or t.stride(-1) == 1 else t.contiguous() for t in (q, k, v)
    )
    if torch._C._is_any_autocast_enabled():
        q, k, v = autocast(q, k, v)
    o.check(q, k, v)
    lib = _library.load()
    number = o.layout_number()
    views = [_library.tensor(t.transpose(1, 2) if number == 1 else t) for t in (q, k, v)]
    out = _library.view(None, _library.NAMES[views[0].dtype], _out_shape(q, v, number))
    fields = {name: _library.tensor(t) for name, t in o.tensors().items()}
    args = lib.args(*views, out, **fields, **o.numbers())
    if q.is_cuda:
        args.max_seq_q, args.max_seq_k = o.max_seqlen_q, o.max_seqlen_k
        args.device = _library.DEVICES["cuda"]
        args.stream = torch.cuda.current_stream(q.device).cuda_stream
        args.workspace_bytes = lib.workspace_size(args)  # a call gets as much as it wants
    return lib.explain(args)


def _out_shape(q, v, layout):
    shape = [*q.shape[:-1], v.shape[-1]]
    if layout == 1:
        shape[1], shape[2] = shape[2], shape[1]
    return shape


def _four(query, key, value, mask):
    """All with four dimensions: batch (whatever leads, broadcast), heads, rows, numbers."""
    given = (query, key, value)
    if min(t.dim() for t in given) < 2:
        raise ValueError("query, key and value need at least 2 dimensions")
    rank = max(4, *(t.dim() for t in given))
    padded = [t[(None,) * (rank - t.dim())] for t in given]
    lead = torch.broadcast_shapes(*(t.shape[:-3] for t in padded))
    four = [t.expand(*lead, *t.shape[-3:]).flatten(0, -4) for t in padded]
    if mask is not None and mask.dim() > 2:
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
    if forward_ad._current_level >= 0 or (
        _is_grad_enabled()
        and not (
            type(key) is type(value) is _Tensor
            and (attn_mask is None or (type(attn_mask) is _Tensor and not attn_mask.requires_grad))
            and not (query.requires_grad or key.requires_grad or value.requires_grad)
        )
    ):
        refuse_gradients(query, key, value, attn_mask)
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
    if dropout_p == 0.0 and query.ndim == key.ndim == value.ndim:
        if query.ndim == 4:
            try:
                op = _sdpa if _is_compiling() else _sdpa_now
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
                raise _library.error_of(error) from None
        if query.ndim == 3 and not enable_gqa:  # what leads are the heads of a batch of one
            four = (t.unsqueeze(0) for t in (query, key, value))
            return _call_sdpa(*four, attn_mask, is_causal, number, False, alignment).squeeze(0)
    if not 0 <= dropout_p < 1:
        raise ValueError(f"dropout_p is {dropout_p}; it can be 0 to less than 1")
    rank = max(query.dim(), key.dim(), value.dim())
    (q, k, v), attn_mask, lead = _four(query, key, value, attn_mask)
    if dropout_p == 0:
        out = _call_sdpa(q, k, v, attn_mask, is_causal, number, enable_gqa, alignment)
    else:
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
