"""Gradients of recorded calls: by finite differences in float64, and beside torch's own."""

import attune
import pytest
import torch
from attune import _fallback
from attune._arguments import Options
from torch.nn.functional import scaled_dot_product_attention as torch_sdpa
from torch.utils.checkpoint import checkpoint


def tensor(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


@pytest.fixture(autouse=True)
def no_call_is_torchs(monkeypatch):
    """No call may fall back unseen: a test that means to takes `torchs`."""
    torch.manual_seed(0)

    def refuse(why):
        raise AssertionError(f"torch computes the call: no backward pass {why}")

    monkeypatch.setattr(_fallback, "warn_once", refuse)


@pytest.fixture
def torchs(monkeypatch):
    reasons = []
    monkeypatch.setattr(_fallback, "warn_once", reasons.append)
    return reasons


def int32(*numbers):
    return torch.tensor(numbers, dtype=torch.int32)


# Options of attention(), and by name what else has a gradient: a shape, or (shape, expanded to).
CASES = {
    "plain": ({}, {}),
    "causal": (dict(is_causal=True, causal_alignment="bottom_right"), {}),
    "top left": (dict(is_causal=True, causal_alignment="top_left"), {}),
    "window": (dict(window=(2, 1), causal_alignment="bottom_right"), {}),
    "scale": (dict(scale=0.3), {}),
    "softcap": (dict(softcap=1.3), {}),
    "mask": ({}, {"mask": (2, 4, 3, 5)}),
    "mask of heads": ({}, {"mask": (4, 1, 5)}),
    "mask of a batch": (dict(softcap=1.3), {"mask": (2, 1, 3, 1)}),
    "mask of rows": ({}, {"mask": (3, 5)}),
    "expanded mask": ({}, {"mask": ((1, 4, 1, 5), (2, 4, 3, 5))}),
    "sinks": ({}, {"sinks": (4,)}),
    "lse": (dict(return_lse=True), {}),
    "lse, sinks and mask": (dict(return_lse=True), {"sinks": (4,), "mask": (3, 5)}),
    "slopes": (
        dict(alibi_slopes=torch.rand(4).double(), causal_alignment="bottom_right"),
        {},
    ),
    "key lengths": (dict(key_lengths=int32(0, 4), return_lse=True), {"sinks": (4,)}),
    "key lengths and causal": (
        dict(key_lengths=int32(5, 3), is_causal=True, causal_alignment="bottom_right"),
        {},
    ),
    "blocks": (dict(block_mask=torch.eye(3, dtype=torch.bool), block_size=(1, 2)), {}),
    "dropout": (dict(dropout_p=0.4, dropout_seed=2**63 + 9, dropout_offset=3), {"mask": (3, 5)}),
    "rows without keys": (
        dict(mask=torch.eye(3, 5, dtype=torch.bool).roll(1, 0), return_lse=True, is_causal=True,
             causal_alignment="top_left"),
        {"sinks": (4,)},
    ),
    "reference": (dict(mode="reference"), {}),
    "batch invariant": (dict(batch_invariant=True), {}),
}  # fmt: skip


@pytest.mark.parametrize(
    "name,layout",
    [
        *((name, "bhsd") for name in CASES),
        *((name, "bshd") for name in ("plain", "lse, sinks and mask", "key lengths")),
    ],
)
def test_gradcheck(name, layout):
    options, shapes = CASES[name]
    rows = [(2, 4, 3, 3), (2, 2, 5, 3), (2, 2, 5, 2)]
    if layout == "bshd":
        rows = [(b, s, h, d) for b, h, s, d in rows]
    qkv = [tensor(*shape) for shape in rows]
    wide = {key: shape[1] for key, shape in shapes.items() if isinstance(shape[0], tuple)}
    more = [tensor(*(s[0] if key in wide else s)) for key, s in shapes.items()]

    def call(q, k, v, *tensors):
        given = dict(zip(shapes, tensors, strict=True))
        given = {key: t.expand(wide[key]) if key in wide else t for key, t in given.items()}
        result = attune.attention(q, k, v, layout=layout, **options, **given)
        if not options.get("return_lse"):
            return result
        out, lse = result  # a row without keys has an LSE of -inf
        return out, lse.masked_fill(lse == -torch.inf, 0.0)

    assert torch.autograd.gradcheck(call, (*qkv, *more))


def test_gradcheck_of_the_flash_functions():
    slopes = torch.rand(4).double()

    def call(q, k, v):
        return attune.flash_attn_func(
            q, k, v, 0.0, 0.3, True, (2, 0), 5.0, slopes, return_attn_probs=True
        )[:2]

    assert torch.autograd.gradcheck(call, (tensor(1, 3, 4, 3), *(tensor(1, 4, 2, 3) for _ in "kv")))
    ends_q, ends_k = int32(0, 2, 2, 5), int32(0, 3, 5, 9)

    def ragged(q, k, v):
        return attune.flash_attn_varlen_func(
            q, k, v, ends_q, ends_k, 3, 4, causal=True, return_attn_probs=True
        )[:2]

    rows = tensor(5, 4, 3), tensor(9, 2, 3), tensor(9, 2, 2)
    assert torch.autograd.gradcheck(ragged, rows)


def test_packed_tensors_have_gradients():
    ends = int32(0, 2, 5)
    qkv, q, kv = tensor(1, 5, 3, 4, 3), tensor(1, 5, 4, 3), tensor(1, 7, 2, 2, 3)
    calls = (
        (attune.flash_attn_qkvpacked_func, (qkv,), (0.0, 0.3, True), qkv.unbind(2)),
        (attune.flash_attn_kvpacked_func, (q, kv), (0.0, None, True), (q, *kv.unbind(2))),
    )
    for call, packed, rest, parts in calls:
        out = call(*packed, *rest, window_size=(2, 0))
        assert torch.equal(out, attune.flash_attn_func(*parts, *rest, window_size=(2, 0)))
        assert all(g.abs().sum() > 0 for g in torch.autograd.grad(out.square().sum(), packed))
    rows, keys = qkv[0], tensor(5, 2, 2, 3)
    given = (ends, ends, 3, 3, 0.0, 0.3, True)
    expected = attune.flash_attn_varlen_func(*rows.unbind(1), *given)
    found = attune.flash_attn_varlen_qkvpacked_func(rows, ends, 3, 0.0, 0.3, causal=True)
    assert torch.equal(found, expected)
    expected = attune.flash_attn_varlen_func(rows[:, 0], *keys.unbind(1), *given)
    found = attune.flash_attn_varlen_kvpacked_func(rows[:, 0], keys, *given)
    assert torch.equal(found, expected)
    assert torch.autograd.grad(found.sum(), keys)[0].abs().sum() > 0


def test_the_cache_records_nothing():
    q, cache = tensor(1, 1, 2, 8, dtype=torch.float32), torch.randn(1, 9, 2, 8)
    with pytest.raises(NotImplementedError, match="with_kvcache.*no backward pass"):
        attune.flash_attn_with_kvcache(q, cache, cache)


BROADCASTS = {
    "batch of k": ((2, 2, 3, 4), (1, 2, 3, 4)),
    "heads of k": ((1, 2, 3, 4), (1, 1, 3, 4)),
    "heads of q": ((1, 1, 3, 4), (2, 2, 3, 4)),
    "ranks": ((2, 3, 4), (3, 4)),
    "more ranks": ((2, 3, 4), (2, 1, 2, 3, 4)),
}


@pytest.mark.parametrize("case", BROADCASTS)
def test_gradients_of_what_torchs_function_broadcasts(case):
    q_shape, k_shape = BROADCASTS[case]
    inputs = tensor(*q_shape), tensor(*k_shape), tensor(*k_shape), tensor(3, 3)
    call = attune.scaled_dot_product_attention
    assert torch.autograd.gradcheck(lambda *t: call(*t, is_causal=True, scale=0.3), inputs)


def exact_gradients(call, inputs, weights):
    inputs = [t.detach().double().requires_grad_() for t in inputs]
    (call(*inputs) * weights.double()).sum().backward()
    return [t.grad for t in inputs]


@pytest.mark.parametrize(
    "dtype,limit", [(torch.float32, 1e-5), (torch.float16, 4e-3), (torch.bfloat16, 3e-2)]
)
@pytest.mark.parametrize("swapped", [False, True])
def test_every_dtype(dtype, limit, swapped):
    q, k, v = tensor(2, 4, 33, 16), tensor(2, 2, 47, 16), tensor(2, 2, 47, 8)
    inputs = [t.detach().to(dtype) for t in (q, k, v)]
    if swapped:
        inputs = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in inputs]
    inputs = [t.requires_grad_() for t in inputs]
    weights = torch.randn(2, 4, 33, 8)
    out = attune.scaled_dot_product_attention(*inputs, enable_gqa=True)
    (out * weights.to(dtype)).sum().backward()
    exact = exact_gradients(lambda *t: torch_sdpa(*t, enable_gqa=True), inputs, weights.to(dtype))
    for t, expected in zip(inputs, exact, strict=True):
        assert t.grad.dtype == dtype and t.grad.stride() == t.stride()
        size = expected.abs().max().item()
        assert (t.grad.double() - expected).abs().max().item() <= limit * size


def test_the_gradient_of_a_mask_has_its_dtype():
    q, k, v = torch.randn(3, 1, 2, 5, 8).bfloat16()
    for mask in (torch.randn(5, 5).bfloat16(), torch.randn(2, 5, 5)):
        mask.requires_grad_()
        attune.attention(q, k, v, mask=mask).sum().backward()
        assert mask.grad.dtype == mask.dtype and mask.grad.shape == mask.shape


@pytest.mark.parametrize("queries,keys,batch", [(0, 5, 2), (5, 0, 2), (5, 5, 0), (0, 0, 1)])
def test_nothing_to_do(queries, keys, batch):
    q, k, v = tensor(batch, 2, queries, 8), tensor(batch, 2, keys, 8), tensor(batch, 2, keys, 8)
    sinks = tensor(2)
    out, lse = attune.attention(q, k, v, sinks=sinks, return_lse=True)
    (out.sum() + lse.sum()).backward()
    assert all(t.grad.shape == t.shape and t.grad.abs().sum() == 0 for t in (q, k, v))
    # Without keys the LSE is the sink.
    assert sinks.grad.tolist() == [float(batch * queries if keys == 0 else 0)] * 2


@pytest.mark.parametrize("which", ["q", "k", "v"])
def test_one_input_alone(which):
    inputs = {name: torch.randn(1, 2, 5, 8) for name in "qkv"}
    inputs[which].requires_grad_()
    attune.attention(**inputs).square().sum().backward()
    assert [name for name, t in inputs.items() if t.grad is not None] == [which]


# --- dropout --------------------------------------------------------------------------------------


def linear_in_v(call, v):
    """<weights, out> and <gradient, v>: equal, if both passes dropped the same."""
    v.grad = None
    out = call()
    weights = torch.randn_like(out)
    (out * weights).sum().backward()
    return (out * weights).sum().item(), (v.grad * v).sum().item()


@pytest.mark.parametrize("options", [{"dropout_seed": 5}, {}])
def test_the_backward_pass_drops_what_the_forward_pass_dropped(options):
    q, k, v = (tensor(2, 3, 24, 8) for _ in "qkv")
    calls = [lambda: attune.attention(q, k, v, dropout_p=0.5, **options)]
    if not options:
        calls.append(lambda: attune.scaled_dot_product_attention(q, k, v, dropout_p=0.5))
    for call in calls:
        forward, backward = linear_in_v(call, v)
        assert forward == pytest.approx(backward, rel=1e-12)


def test_random_dropout_draws_anew_and_by_torchs_seed():
    q, k, v = (tensor(1, 2, 24, 8, dtype=torch.float32) for _ in "qkv")

    def gradient(seed):
        if seed is not None:
            torch.manual_seed(seed)
        out = attune.attention(q, k, v, dropout_p=0.5)
        return torch.autograd.grad(out.sum(), v)[0]

    assert torch.equal(gradient(1), gradient(1))
    assert not torch.equal(gradient(None), gradient(None))
    with torch.no_grad():
        torch.manual_seed(1)
        without = attune.attention(q, k, v, dropout_p=0.5)
    torch.manual_seed(1)
    assert torch.equal(attune.attention(q, k, v, dropout_p=0.5), without)


# --- what torch does with a recorded call ---------------------------------------------------------


def test_the_same_numbers_are_recorded_and_nothing_large_is_kept():
    q, k, v = (tensor(1, 2, 300, 8, dtype=torch.float32) for _ in "qkv")
    kept = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t)
    with hooks:
        out = attune.scaled_dot_product_attention(q, k, v, is_causal=True)
    shapes = sorted(tuple(t.shape) for t in kept)
    assert shapes == sorted([(1, 2, 300, 8)] * 4 + [(1, 2, 300)])  # q, k, v, out and LSE
    with torch.no_grad():
        expected = attune.attention(q, k, v, is_causal=True, return_lse=True)[0]
    assert torch.equal(out, expected)


def test_second_derivatives_are_refused():
    q, k, v = (tensor(1, 2, 5, 8) for _ in "qkv")
    for options in ({}, {"dropout_p": 0.5}, {"softcap": 2.0}):
        out = attune.attention(q, k, v, **options)
        (first,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
        with pytest.raises(NotImplementedError, match="attune has no second derivatives"):
            first.sum().backward()


def test_what_changed_after_the_call_is_noticed():
    q, k, v = torch.randn(3, 1, 2, 5, 8)
    out = attune.attention(q.requires_grad_(), k, v)
    k.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(reentrant):
    def block(q, k, v):
        out = attune.scaled_dot_product_attention(q * 2, k, v, is_causal=True)
        return attune.attention(out, k, v, dropout_p=0.3)

    def gradients(function):
        inputs = [torch.randn(1, 2, 24, 8, generator=torch.Generator().manual_seed(n),
                              requires_grad=True) for n in range(3)]  # fmt: skip
        torch.manual_seed(7)
        function(*inputs).square().sum().backward()
        return [t.grad for t in inputs]

    ours = gradients(lambda *t: checkpoint(block, *t, use_reentrant=reentrant))
    for found, expected in zip(ours, gradients(block), strict=True):
        assert torch.equal(found, expected)


def test_autocast():
    q, k, v = (tensor(1, 2, 24, 8, dtype=torch.float32) for _ in "qkv")
    for call in (attune.scaled_dot_product_attention, attune.attention):
        with torch.autocast("cpu", torch.bfloat16):
            out = call(q, k, v)
        assert out.dtype == torch.bfloat16
        out.float().square().sum().backward()
    exact = exact_gradients(lambda *t: 2 * torch_sdpa(*t).square(), (q, k, v), torch.ones(1))
    for t, expected in zip((q, k, v), exact, strict=True):
        assert t.grad.dtype == torch.float32
        limit = 0.05 * expected.abs().max()
        assert ((t.grad - expected).abs() <= limit).all()


OPTIONS = {
    "mask and sinks": dict(softcap=5.0, return_lse=True),
    "window": dict(window=(3, 0), is_causal=True),
    "dropout": dict(dropout_p=0.5, dropout_seed=7),
    "lengths": dict(key_lengths=int32(4, 9)),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_compiled_in_one_graph(name, dynamic):
    torch._dynamo.reset()

    def block(q, k, v, mask, sinks):
        tensors = {"mask": mask, "sinks": sinks} if name == "mask and sinks" else {}
        result = attune.attention(q * 2, k, v, **OPTIONS[name], **tensors)
        out = result[0] * result[1][..., None] if tensors else result
        return out + attune.scaled_dot_product_attention(q, k, v, is_causal=True)

    compiled = torch.compile(block, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for length in (9, 12):
        torch.manual_seed(length)
        inputs = [tensor(2, 4, length, 16, dtype=torch.float32) for _ in "qkv"]
        inputs += [tensor(length, length, dtype=torch.float32), tensor(4, dtype=torch.float32)]
        wanted = inputs if name == "mask and sinks" else inputs[:3]
        gradients = [
            torch.autograd.grad(function(*inputs).square().sum(), wanted)
            for function in (compiled, block)
        ]
        for found, expected in zip(*gradients, strict=True):
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dynamic", [False, True])
def test_random_dropout_compiled(dynamic):
    torch._dynamo.reset()
    q, k, v = (tensor(1, 2, 24, 8) for _ in "qkv")
    compiled = torch.compile(
        lambda *t: attune.scaled_dot_product_attention(*t, dropout_p=0.5),
        fullgraph=True,
        dynamic=dynamic,
        backend="aot_eager",
    )
    results = []
    for _ in range(2):
        forward, backward = linear_in_v(lambda: compiled(q, k, v), v)
        assert forward == pytest.approx(backward, rel=1e-12)
        results.append(v.grad)
    assert not torch.equal(*results)


@pytest.mark.full
def test_inductor():
    torch._dynamo.reset()
    module = attune.MultiheadSelfAttention(64, 4)
    x = tensor(2, 9, 64, dtype=torch.float32)

    def block(x):
        out = module(x)
        q = out.view(2, 9, 4, 16).transpose(1, 2)
        dropped = attune.scaled_dot_product_attention(q, q, q, dropout_p=1e-7)
        return out + dropped.transpose(1, 2).reshape(2, 9, 64)

    weights = torch.randn(2, 9, 64)
    parameters = [x, *module.parameters()]
    gradients = [
        torch.autograd.grad((function(x) * weights).sum(), parameters)
        for function in (torch.compile(block, fullgraph=True), block)
    ]
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def backward_samples():
    attune.info()
    q, k, v = (torch.randn(2, 4, 9, 16) for _ in "qkv")
    lse = torch.randn(2, 4, 9)
    op, random = torch.ops.attune.attention_backward, torch.ops.attune.attention_random_backward
    yield op.default, (q, None, q, lse, q, k, v), {"causal": True}
    tensors = (torch.randn(1, 9, 9), None, None, torch.randn(4))
    wanted = {"want_dmask": True, "want_dsinks": True}
    yield op.default, (q, lse, q, lse, q, k, v, *tensors), {**wanted, "want_dq": False}
    rows = [t.transpose(1, 2).contiguous() for t in (q, k, v)]
    yield op.default, (rows[0], lse, rows[0], lse, *rows), {"layout": 1}
    swapped = q.transpose(1, 2).contiguous().transpose(1, 2)
    yield op.default, (q, lse, swapped, lse, swapped, k[:, :2], v[:, :2]), {"softcap": 3.0}
    drawn = torch.tensor([7])
    yield random.default, (q, None, q, lse, q, k, v, drawn), {"dropout_p": 0.5}


@pytest.mark.parametrize("n", range(5))
def test_opcheck_of_the_backward_ops(n):
    op, args, keywords = list(backward_samples())[n]
    torch.library.opcheck(op, args, keywords)


@pytest.mark.parametrize("name", ["attention", "attention_random", "sdpa"])
def test_opcheck_of_recorded_ops(name):
    attune.info()
    q, k, v = (tensor(2, 4, 9, 16, dtype=torch.float32) for _ in "qkv")
    op = getattr(torch.ops.attune, name).default
    args = (q, k, v, torch.tensor([7])) if name == "attention_random" else (q, k, v)
    options = {"want_lse": True} if name != "sdpa" else {}
    torch.library.opcheck(op, args, {"causal": True, **options})


def test_ops_that_record_without_lse():
    """As an exported program calls them: the backward pass computes LSE itself."""
    q, k, v = tensor(2, 4, 5, 3), tensor(2, 4, 5, 3), tensor(2, 1, 5, 3)
    mask = tensor(1, 5, 5)
    sdpa, attention = torch.ops.attune.sdpa, torch.ops.attune.attention
    assert torch.autograd.gradcheck(lambda *t: sdpa(*t, True, 0.3), (q, k, v, mask))
    assert torch.autograd.gradcheck(
        lambda *t: attention(*t, softcap=2.0)[0], (q, k[:, :1], v, mask)
    )


@pytest.mark.parametrize("options", [{}, {"softcap": 5.0}, {"dropout_p": 0.5}])
def test_an_exported_program_has_gradients(options):
    class Block(torch.nn.Module):
        def forward(self, q, k, v):
            return attune.attention(q, k, v, **options)

    q, k, v = torch.randn(3, 2, 4, 9, 16)
    program = torch.export.export(Block(), (q, k, v)).module()
    gradients = []
    for function in (program, Block()):
        inputs = [t.clone().requires_grad_() for t in (q, k, v)]
        torch.manual_seed(3)
        function(*inputs).square().sum().backward()
        gradients.append([t.grad for t in inputs])
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected)


def test_many_gradients_at_once():
    """vmap over the backward pass alone."""
    q, k, v = (tensor(1, 2, 5, 8) for _ in "qkv")
    out = attune.attention(q, k, v)
    weights = torch.randn(3, *out.shape, dtype=out.dtype)
    many = torch.autograd.grad(out, (q, v), weights, is_grads_batched=True, retain_graph=True)
    for n in range(3):
        one = torch.autograd.grad(out, (q, v), weights[n], retain_graph=True)
        for found, expected in zip(many, one, strict=True):
            torch.testing.assert_close(found[n], expected)


# --- what stays torch's ---------------------------------------------------------------------------


@pytest.mark.parametrize("call", [attune.scaled_dot_product_attention, attune.attention])
def test_functions_of_torch_func_are_torchs(call, torchs):
    q, k, v = torch.randn(3, 2, 2, 5, 8)
    loss = lambda q: call(q, k, v, is_causal=True).square().sum()  # noqa: E731
    expected = torch.autograd.functional.jacobian(loss, q)
    torch.testing.assert_close(torch.func.grad(loss)(q), expected)
    assert torchs and all("torch.func" in why for why in torchs)


def test_slopes_that_want_a_gradient_are_torchs(torchs):
    q, k, v = (tensor(1, 2, 5, 8) for _ in "qkv")
    slopes = tensor(2)
    attune.attention(q, k, v, alibi_slopes=slopes).square().sum().backward()
    assert slopes.grad.abs().sum() > 0 and "alibi_slopes" in torchs[0]
    blocks = torch.ones(1, 1, dtype=torch.bool)
    with pytest.raises(NotImplementedError, match="alibi_slopes.*torch has no block_mask"):
        attune.attention(q, k, v, alibi_slopes=slopes, block_mask=blocks)
    with pytest.raises(NotImplementedError, match="alibi_slopes has no gradient"):
        torch.ops.attune.attention(q, k, v, None, None, slopes)


def test_the_fallback_agrees():
    """What torch computes elsewhere is what we compute here."""
    options = Options(is_causal=True, causal_alignment="bottom_right", softcap=3.0, window=(4, 0))
    inputs = tensor(2, 4, 9, 8), tensor(2, 2, 12, 8), tensor(2, 2, 12, 8)
    gradients = []
    for function in (attune._torch.attention, lambda *t: _fallback._all_scores(*t)[0]):
        out = function(*inputs, options)
        gradients.append(torch.autograd.grad(out.square().sum(), inputs))
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected)


# --- explain --------------------------------------------------------------------------------------


def test_explain_of_the_backward_pass():
    q, k, v = torch.randn(3, 2, 4, 9, 16)
    said = attune.explain(q, k, v, is_causal=True, backward=True)
    assert said["backward"]["chosen"] and said["backward"]["reason"]
    mask = torch.randn(9, 9, requires_grad=True)
    for options in ({"mask": mask}, {"sinks": torch.randn(4, requires_grad=True)}):
        assert attune.explain(q, k, v, backward=True, **options)["backward"]["chosen"]
    with pytest.raises(TypeError, match="torch tensors"):
        attune.explain(q.numpy(), k.numpy(), v.numpy(), backward=True)
    with pytest.raises(attune.InvalidArgument, match="k"):
        attune.explain(q, k[..., :8], v, backward=True)
