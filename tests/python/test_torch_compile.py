"""torch.compile(fullgraph=True) of everything that takes torch tensors."""

import warnings

import attune
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
AGAINST_TORCH = {"cpu": dict(atol=1e-5, rtol=1e-5), "cuda": dict(atol=1e-4, rtol=1e-4)}


@pytest.fixture(params=DEVICES)
def device(request):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    torch.manual_seed(0)
    torch._dynamo.reset()
    return request.param


def qkv(device, *shape):
    return torch.randn(3, *(shape or (2, 4, 9, 16)), device=device).unbind(0)


def check(function, *args, backend="aot_eager", **options):
    """The same with and without compilation."""
    compiled = torch.compile(function, fullgraph=True, backend=backend, **options)
    expected = function(*args)
    torch.testing.assert_close(compiled(*args), expected)
    return expected


@pytest.mark.parametrize("scale", [0.3, 1, 1e-3])
def test_a_scale(device, scale):
    call = attune.scaled_dot_product_attention
    check(lambda *t: call(*t, scale=scale), *qkv(device))


def test_a_scale_that_is_an_argument(device):
    def call(q, k, v, scale):
        return attune.scaled_dot_product_attention(q, k, v, scale=scale)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=True)
    q, k, v = qkv(device)
    for scale in (0.3, 0.7):
        torch.testing.assert_close(compiled(q, k, v, scale), call(q, k, v, scale))


def test_every_argument(device):
    q, k, v = qkv(device)
    mask = torch.rand(9, 9, device=device) < 0.7

    def call(q, k, v):
        first = attune.scaled_dot_product_attention(q, k, v, mask, 0.0, False, 0.3, True)
        return first + attune.scaled_dot_product_attention(
            q, k[:, :2], v[:, :2], None, 0, True, 0.2, True
        )

    check(call, q, k, v)


def test_dropout_draws_anew_in_every_run(device):
    q, k, v = qkv(device)
    v = v.abs() + 1
    call = torch.compile(
        lambda *t: attune.scaled_dot_product_attention(*t, dropout_p=0.5, scale=0.3),
        fullgraph=True,
        backend="aot_eager",
    )
    torch.manual_seed(1)
    first, second = call(q, k, v), call(q, k, v)
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    assert torch.equal(call(q, k, v), first)


FEATURES = {
    "window": lambda d: dict(window=(3, 0), is_causal=True),
    "softcap": lambda d: dict(softcap=5.0, scale=0.3),
    "slopes and sinks": lambda d: dict(
        alibi_slopes=torch.rand(4, device=d), sinks=torch.randn(4, device=d)
    ),
    "lse": lambda d: dict(return_lse=True, mask=torch.randn(9, 9, device=d)),
    "dropout": lambda d: dict(dropout_p=0.5, dropout_seed=7),
    "blocks": lambda d: dict(
        block_mask=torch.tensor([[True, False], [True, True]], device=d)[None, None],
        block_size=(8, 8),
    ),
    "bshd": lambda d: dict(layout="bshd", scale=0.3, return_lse=True),
    "invariant": lambda d: dict(batch_invariant=True, strict_fp32=True),
    "fused": lambda d: dict(mode="fused"),
}


@pytest.mark.parametrize("name", FEATURES)
def test_features(device, name):
    options = FEATURES[name](device)
    check(lambda *t: attune.attention(*t, **options), *qkv(device))


def test_flash_functions(device):
    ends = torch.tensor([0, 3, 9], dtype=torch.int32, device=device)
    check(
        lambda *t: attune.flash_attn_varlen_func(*t, ends, ends, 6, 6, 0.0, 0.3, True),
        *qkv(device, 9, 4, 16),
    )
    lengths = torch.tensor([4, 9], dtype=torch.int32, device=device)

    def call(q, k, v):
        out = attune.flash_attn_func(q, k, v, 0.0, 0.3, True, (3, 0))
        return out + attune.flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths, causal=True)

    check(call, *qkv(device, 2, 9, 4, 16))


def test_modules(device):
    q, k, v = qkv(device)
    slopes = torch.rand(4)
    check(attune.Attention(scale=0.3, is_causal=True, alibi_slopes=slopes).to(device), q, k, v)
    check(attune.CUDAAttention("fused"), q, k, v, None, True, 0.5)
    module = attune.MultiheadSelfAttention(48, 6).to(device)
    with torch.no_grad():
        check(module, torch.randn(2, 17, 48, device=device))


@pytest.mark.parametrize("kind", ["ours", "float64", "recorded", "sdpa_kernel"])
@pytest.mark.parametrize("outside", [False, True])
def test_a_routed_call(device, kind, outside, monkeypatch):
    monkeypatch.setattr(attune._fallback, "_warned", True)
    q, k, v = qkv(device)
    if kind == "float64":
        q, k, v = q.double(), k.double(), v.double()
    q.requires_grad_(kind == "recorded")
    routed = attune.sdpa()

    def call(q, k, v):
        if kind == "sdpa_kernel":
            with sdpa_kernel(SDPBackend.MATH):
                return scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)
        return scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)

    def inside(q, k, v):
        with routed:
            return call(q, k, v)

    expected = call(q, k, v)
    compiled = torch.compile(call if outside else inside, fullgraph=True, backend="aot_eager")
    if outside:
        with routed:
            out = compiled(q, k, v)
    else:
        out = compiled(q, k, v)
    torch.testing.assert_close(out, expected, **AGAINST_TORCH[device])
    ours = kind == "ours" or (kind == "recorded" and device == "cpu")
    assert (routed.taken, sum(routed.left.values())) == ((1, 0) if ours else (0, 1))


def test_multihead_attention_under_routing(device):
    module = torch.nn.MultiheadAttention(64, 4, batch_first=True, device=device)
    x = torch.randn(2, 9, 64, device=device)

    def call(x):
        with attune.sdpa(), torch.no_grad():
            return module(x, x, x, need_weights=False)[0]

    check(call, x)


@pytest.mark.parametrize("dims", [(0, 0, 0), (1, None, 2)])
def test_vmap(device, dims):
    parts = [torch.randn(3, 2, 4, 9, 16, device=device) for _ in range(3)]
    inputs = [
        t[0] if dim is None else t.movedim(0, dim) for t, dim in zip(parts, dims, strict=True)
    ]
    check(torch.func.vmap(attune.scaled_dot_product_attention, in_dims=dims), *inputs)


def test_nested_vmap(device):
    call = torch.func.vmap(torch.func.vmap(attune.scaled_dot_product_attention))
    check(call, *qkv(device, 2, 3, 2, 4, 9, 16))


@pytest.mark.parametrize("by_torch", [False, True])
def test_recorded_calls(device, by_torch, monkeypatch):
    if not by_torch and device == "cuda":
        pytest.skip("there is no backward pass on CUDA")
    monkeypatch.setattr(attune._fallback, "_warned", False)
    if by_torch:
        monkeypatch.setattr(attune._gradients, "why_not", lambda *t, **more: "for this device yet")
    q, k, v = qkv(device)
    q.requires_grad_()
    compiled = torch.compile(
        lambda *t: (
            attune.scaled_dot_product_attention(*t, scale=0.3)
            + attune.attention(*t, softcap=5.0, window=(3, 0))
        ),
        fullgraph=True,
        backend="aot_eager",
    )
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        out = compiled(q, k, v)
    assert len([w for w in warned if "no backward pass" in str(w.message)]) == by_torch
    out.sum().backward()
    assert q.grad.abs().sum() > 0
    with torch.no_grad():
        expected = attune.scaled_dot_product_attention(q, k, v, scale=0.3)
        expected = expected + attune.attention(q, k, v, softcap=5.0, window=(3, 0))
    torch.testing.assert_close(out, expected, **AGAINST_TORCH[device])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("swapped", [False, True])
def test_memory_order(device, swapped, dynamic):
    """What the graph believes of the output's strides is what the op does."""

    def call(q, k, v):
        out = attune.scaled_dot_product_attention(q, k, v, scale=0.3)
        other = attune.attention(q, k, v, softcap=5.0)
        return out, other, out.transpose(1, 2).reshape(out.shape[0], out.shape[2], -1)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for length in (9, 12):
        q, k, v = qkv(device, 2, 4, length, 16)
        if swapped:
            q = q.transpose(1, 2).contiguous().transpose(1, 2)
        for ours, expected in zip(compiled(q, k, v), call(q, k, v), strict=True):
            torch.testing.assert_close(ours, expected)
            assert ours.stride() == expected.stride()


@pytest.mark.full
def test_inductor():
    """The default backend plans memory by the strides that it was told."""
    torch._dynamo.reset()
    q, k, v = (t.transpose(1, 2) for t in qkv("cpu", 2, 9, 4, 16))

    def call(q, k, v):
        out = attune.scaled_dot_product_attention(q * 2, k, v, scale=0.3)
        return out.transpose(1, 2).reshape(2, 9, 64) + 1

    check(call, q, k, v, backend="inductor")
