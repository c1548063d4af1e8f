"""The ops' gradients: what a recorded call keeps, the formula, and what torch must know of it.

Kept are q, k, v, out and LSE, with the optional tensors and the numbers; never the scores. A call
that records asks for LSE. One that came past our functions (in an exported program) did not, and
its backward pass computes the forward pass once more."""

import torch
from torch.autograd import forward_ad

from ._arguments import MODES
from ._errors import error_of

# Of attune::attention, in the order of its schema, and those of them that have a gradient.
HEAD = ("q", "k", "v")
TENSORS = (
    "mask",
    "block_mask",
    "alibi_slopes",
    "sinks",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "key_lengths",
    "user_data",
)
WITH_GRADIENT = ("q", "k", "v", "mask", "sinks")
_NO_SECOND = (
    "attune has no second derivatives: the backward pass of attention cannot be differentiated "
    "(create_graph=True, torch.autograd.grad of a gradient)"
)


def why_not(q, *tensors, slopes=None):
    """Why attune has no backward pass for a call; empty: it has. The one place that knows. What is
    said continues "attune has no backward pass"."""
    if forward_ad._current_level >= 0 and any(has_tangent(t) for t in (q, *tensors, slopes)):
        return "for forward-mode derivatives"
    if torch._C._are_functorch_transforms_active():
        return "for torch.func's transforms"
    if q.device.type not in ("cpu", "meta"):
        return f"for {q.device.type} tensors yet"
    if slopes is not None and slopes.requires_grad:
        return "for alibi_slopes, which have no gradient"
    return ""


def has_tangent(t):
    return t is not None and forward_ad.unpack_dual(t).tangent is not None


def in_order_of(t, sizes, **options):
    """Without numbers, in t's order of memory, as the ops allocate."""
    swapped = len(sizes) == 4 and t.stride(1) < t.stride(2)
    if isinstance(swapped, torch.SymBool):
        from torch.fx.experimental.symbolic_shapes import guard_or_false

        swapped = guard_or_false(swapped)
    if swapped:
        sizes = (sizes[0], sizes[2], sizes[1], sizes[3])
        return t.new_empty(sizes, **options).transpose(1, 2)
    return t.new_empty(sizes, **options)


def _fake_backward(dout, dlse, out, lse, q, k, v, mask=None, block_mask=None, alibi_slopes=None,
                   sinks=None, *rest, want_dq=True, want_dk=True, want_dv=True, want_dmask=False,
                   want_dsinks=False, **options):  # fmt: skip
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    rows = ((q, want_dq), (k, want_dk), (v, want_dv))
    others = ((mask, want_dmask), (sinks, want_dsinks))
    return (
        *(in_order_of(t, t.shape) if wanted else t.new_empty((0,)) for t, wanted in rows),
        *(q.new_empty(t.shape if wanted else (0,), dtype=wide) for t, wanted in others),
    )


def _fake_random_backward(dout, dlse, out, lse, q, k, v, drawn, *tensors, **options):
    return _fake_backward(dout, dlse, out, lse, q, k, v, *tensors, **options)


def call(op, *args, **options):
    """Below autograd, whose half of an op is in Python, where nothing is recorded."""
    try:
        if torch.is_grad_enabled():
            return op(*args, **options)
        with torch._C._AutoDispatchBelowAutograd():
            return op(*args, **options)
    except RuntimeError as error:
        raise error_of(error) from None


def _backward_options(options, needs):
    """Of the backward op: those of the forward call, and which gradients are wanted. A rung's name
    is that of a forward kernel; the reference has a backward pass of its own."""
    options = {name: value for name, value in options.items() if name != "want_lse"}
    if options.get("mode") != MODES["reference"]:
        options.pop("mode", None)
    return {**options, **{f"want_d{name}": needs[name] for name in WITH_GRADIENT}}


def _run(op, dout, dlse, results, head, tensors, options, needs):
    """The gradients by name; None where one is not wanted."""
    out, lse = results
    dout = torch.zeros_like(out) if dout is None else dout
    options = _backward_options(options, needs)
    found = call(op, dout, dlse, out, lse, *head, *tensors, **options)
    found = dict(zip(WITH_GRADIENT, found, strict=True))
    mask = tensors[0]
    if needs["mask"] and mask.dtype != found["mask"].dtype:
        found["mask"] = found["mask"].to(mask.dtype)
    return {name: gradient if needs[name] else None for name, gradient in found.items()}


def _needs(names, wanted):
    """Which inputs' gradients are wanted: torch leaves out trailing inputs at their defaults."""
    return {**dict.fromkeys(names, False), **dict(zip(names, wanted, strict=False))}


class _Formula:
    """Of attune::attention, or of attention_random, which has one more tensor among the first."""

    def __init__(self, forward, backward, head):
        self.forward, self.backward = forward, backward
        self.head, self.names = len(head), (*head, *TENSORS)

    def keep(self, ctx, wanted, inputs, options, output):
        if _needs(self.names, wanted)["alibi_slopes"]:
            raise NotImplementedError("alibi_slopes has no gradient: detach it")
        ctx.set_materialize_grads(False)
        ctx.options = options
        ctx.save_for_backward(*inputs, *output)

    def gradients(self, ctx, wanted, dout, dlse):
        *inputs, out, lse = ctx.saved_tensors
        first, tensors = inputs[: self.head], inputs[self.head :]
        if not ctx.options["want_lse"]:
            out, lse = call(self.forward, *inputs, **{**ctx.options, "want_lse": True})
        needs, found = _needs(self.names, wanted), {}
        if dout is not None or dlse is not None:
            results = out, lse
            found = _run(self.backward, dout, dlse, results, first, tensors, ctx.options, needs)
        return tuple(found.get(name) for name in self.names)

    def register(self):
        """For graphs, and for who reaches the op past our functions."""

        def setup_context(ctx, inputs, keyword_only_inputs, output):
            self.keep(ctx, ctx.needs_input_grad, inputs, keyword_only_inputs, output)

        def backward(ctx, dout, dlse):
            return self.gradients(ctx, ctx.needs_input_grad, dout, dlse)

        torch.library.register_autograd(self.forward, backward, setup_context=setup_context)

    def function(self):
        """The op as a function that records, from (options, *inputs). What torch makes of a
        registered formula reads the schema in every call: 0.3 ms."""
        formula = self

        class Recorded(torch.autograd.Function):
            @staticmethod
            def forward(ctx, options, *inputs):
                output = call(formula.forward, *inputs, **options)
                formula.keep(ctx, ctx.needs_input_grad[1:], inputs, options, output)
                return output

            @staticmethod
            def backward(ctx, dout, dlse):
                found = formula.gradients(ctx, ctx.needs_input_grad[1:], dout, dlse)
                return (None, *found)

        return Recorded.apply


_recorded = {}  # by op


def record(op, inputs, tensors, options):
    """(out, LSE) of a call that is no part of a graph."""
    return _recorded[op](options, *inputs, *(tensors.get(name) for name in TENSORS))


def _sdpa_formula(attention, backward):
    def keep(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:4])
        ctx.rest = inputs[4:]

    def gradients(ctx, dout):
        q, k, v, mask = ctx.saved_tensors
        causal, scale, gqa, alignment, layout = ctx.rest
        wide = (q, k, v) if gqa else broadcast((q, k, v), (0, 2 if layout == 1 else 1))
        options = dict(causal=causal, scale=scale, alignment=alignment, layout=layout)
        results = call(attention, *wide, mask, **options, want_lse=True)
        needs = {**_needs((*HEAD, "mask"), ctx.needs_input_grad), "sinks": False}
        tensors = (mask, *(None for _ in TENSORS[1:]))
        found = _run(backward, dout, None, results, wide, tensors, options, needs)
        dq, dk, dv = (
            None if found[name] is None else found[name].sum_to_size(t.shape)
            for name, t in zip(HEAD, (q, k, v), strict=True)
        )
        return (dq, dk, dv, found["mask"], *(None for _ in ctx.rest))

    return keep, gradients


def broadcast(tensors, dims):
    """Of four dimensions each: along these, one stands for as many as the others have."""
    for d in dims:
        size = max(t.shape[d] for t in tensors)
        wide = [size if n == d else -1 for n in range(4)]
        tensors = [t.expand(wide) if t.shape[d] == 1 else t for t in tensors]
    return tensors


def _no_second(ctx, *gradients):
    raise NotImplementedError(_NO_SECOND)


def _one_by_one(op):
    """vmap's rule where no tensor can hold the mapped dimension beside its own: the op for each."""

    def mapped(info, in_dims, *args, **options):
        calls = [
            op(
                *(t if d is None else t.select(d, n) for t, d in zip(args, in_dims, strict=True)),
                **options,
            )
            for n in range(info.batch_size)
        ]
        parts = tuple(torch.stack(part) for part in zip(*calls, strict=True))
        return parts, (0,) * len(parts)

    return mapped


def register():
    """Of the ops that the library of torch's has: the backward ops' shapes and rules, and the
    formulas of the forward ops."""
    ops = torch.ops.attune
    forward, backward = ops.attention.default, ops.attention_backward.default
    random, random_backward = ops.attention_random.default, ops.attention_random_backward.default
    for op, fake in ((backward, _fake_backward), (random_backward, _fake_random_backward)):
        torch.library.register_fake(op, fake)
        torch.library.register_vmap(op, _one_by_one(op))
        torch.library.register_autograd(op, _no_second)
    for op, its_backward, head in (
        (forward, backward, HEAD),
        (random, random_backward, (*HEAD, "drawn")),
    ):
        formula = _Formula(op, its_backward, head)
        formula.register()
        _recorded[op] = formula.function()
    keep, gradients = _sdpa_formula(forward, backward)
    torch.library.register_autograd(ops.sdpa.default, gradients, setup_context=keep)
