"""float64 tensors: the reference on the CPU, compared with torch's own float64; gradients."""

import attune
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as torch_sdpa


def qkv(*shape):
    torch.manual_seed(0)
    return torch.randn(3, *shape, dtype=torch.float64).unbind(0)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.1},
        {"attn_mask": torch.randn(9, 9, dtype=torch.float64)},
        {"attn_mask": torch.ones(9, 9, dtype=torch.bool).tril()},
    ],
)
def test_it_is_torchs_to_the_last_digits(options):
    q, k, v = qkv(2, 4, 9, 16)
    ours = attune.scaled_dot_product_attention(q, k, v, **options)
    assert ours.dtype == torch.float64
    torch.testing.assert_close(ours, torch_sdpa(q, k, v, **options), rtol=0, atol=1e-14)


def test_lse_softcap_and_scale_are_not_rounded():
    q, k, v = qkv(2, 4, 9, 16)
    out, lse = attune.attention(q, k, v, scale=0.1, softcap=1.3, return_lse=True)
    scores = 1.3 * torch.tanh(0.1 * q @ k.mT / 1.3)
    assert lse.dtype == torch.float64
    torch.testing.assert_close(lse, scores.logsumexp(-1), rtol=0, atol=1e-14)
    torch.testing.assert_close(out, scores.softmax(-1) @ v, rtol=0, atol=1e-14)


def test_lse_softcap_and_scale_are_not_rounded_with_gradients():
    q, k, v = qkv(2, 4, 9, 16)
    slopes, sinks = torch.rand(2, 4, dtype=torch.float64).unbind(0)
    options = dict(scale=0.1, softcap=1.3, alibi_slopes=slopes, sinks=sinks, return_lse=True)
    without = attune.attention(q, k, v, **options)
    recorded = attune.attention(q.requires_grad_(), k, v, **options)
    for ours, reference in zip(recorded, without, strict=True):
        assert ours.dtype == torch.float64
        torch.testing.assert_close(ours.detach(), reference, rtol=0, atol=1e-14)


# Which of the tensors sinks, slopes and bias come with a call, and its other options.
GRADIENTS = {
    "plain": {},
    "softcap": {"softcap": 1.3},
    "sinks": {"tensors": ["sinks"]},
    "lse": {"return_lse": True},
    "window": {"window": (2, 1)},
    "window-softcap": {"window": (1, 0), "softcap": 1.3},
    "alibi": {"tensors": ["alibi_slopes"]},
    "alibi-lse": {"tensors": ["alibi_slopes"], "is_causal": True, "return_lse": True},
    "bias": {"tensors": ["mask"]},
    "bias-softcap": {"tensors": ["mask"], "softcap": 1.3, "is_causal": True},
    "gqa": {"heads": 2},
    "gqa-sinks": {"heads": 2, "tensors": ["sinks"], "is_causal": True},
    "all": {
        "heads": 2,
        "tensors": ["sinks", "alibi_slopes", "mask"],
        "softcap": 1.3,
        "window": (3, 1),
        "scale": 0.4,
        "return_lse": True,
    },
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradcheck(name):
    options = dict(GRADIENTS[name])
    heads, names = options.pop("heads", 4), options.pop("tensors", [])
    layout = "bshd" if name == "all" else "bhsd"
    torch.manual_seed(1)

    def numbers(*shape):
        return torch.randn(*shape, dtype=torch.float64, requires_grad=True)

    def of_layout(count):
        return (1, count, 4, 2) if layout == "bhsd" else (1, 4, count, 2)

    qkv = [numbers(*of_layout(count)) for count in (4, heads, heads)]
    shapes = {"sinks": (4,), "alibi_slopes": (4,), "mask": (4, 4, 4)}
    more = [numbers(*shapes[name]) for name in names]

    def call(q, k, v, *tensors):
        given = dict(zip(names, tensors, strict=True))
        return attune.attention(q, k, v, layout=layout, **options, **given)

    assert torch.autograd.gradcheck(call, (*qkv, *more))


@pytest.mark.parametrize("softcap", [0.0, 1.3])
def test_a_row_without_keys_has_no_gradients(softcap):
    q, k, v = (t.requires_grad_() for t in qkv(1, 2, 4, 8))
    mask = torch.zeros(4, 4, dtype=torch.float64)
    mask[1] = -torch.inf
    out = attune.attention(q, k, v, mask=mask, softcap=softcap)
    out.sum().backward()
    assert torch.all(out[:, :, 1] == 0) and torch.all(q.grad[:, :, 1] == 0)
    assert all(torch.isfinite(t.grad).all() for t in (q, k, v))


@pytest.mark.parametrize("heads", [2, 4])
@pytest.mark.parametrize("named", [{}, {"softcap": 1.3}, {"sinks": torch.rand(4).double()}])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_no_keys_at_all_with_gradients(heads, named, layout):
    q, k, v = (torch.randn(2, n, s, 8).double() for n, s in ((4, 5), (heads, 0), (heads, 0)))
    if layout == "bshd":
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    options = {**named, "layout": layout, "return_lse": True}
    expected = attune.attention(q, k, v, **options)
    inputs = [t.clone().requires_grad_() for t in (q, k, v)]
    out, lse = attune.attention(*inputs, **options)
    assert out.shape == expected[0].shape and torch.all(out == 0)
    torch.testing.assert_close(lse, expected[1], rtol=0, atol=1e-14)
    sinks = named.get("sinks", torch.full((4,), -torch.inf, dtype=torch.float64))
    torch.testing.assert_close(lse[0, :, 0], sinks)
    out.sum().backward()
    assert torch.all(inputs[0].grad == 0)


def test_explain_names_the_reference():
    q, k, v = qkv(1, 2, 9, 16)
    assert attune.explain(q, k, v, return_lse=True)["mode"] == "reference"
    with pytest.raises(attune.Unsupported, match="float64"):
        attune.attention(q, k, v, mode="fused")
    with pytest.raises(attune.InvalidArgument, match="F64.*F32|F32.*F64"):
        attune.attention(q, k.float(), v)


def test_torch_knows_the_dtypes():
    q, k, v = qkv(1, 2, 9, 16)
    for lse in (False, True):
        torch.library.opcheck(
            torch.ops.attune.attention.default,
            (q, k, v),
            {"scale": 0.1, "softcap": 1.3, "causal": True, "alignment": 1, "want_lse": lse},
            test_utils=("test_schema", "test_faketensor"),
        )


def test_unsupported_dtypes_come_with_advice():
    q = torch.ones(1, 1, 4, 8, dtype=torch.int64)
    with pytest.raises(attune.InvalidArgument, match=r"q has a dtype .*\.to\(torch.float32\)"):
        attune.attention(q, q, q)


def test_modules_and_their_tensors():
    torch.manual_seed(0)
    q, k, v = qkv(2, 4, 9, 16)
    tensors = {"sinks": torch.randn(4), "alibi_slopes": torch.rand(4)}
    module = attune.Attention(is_causal=True, **tensors)
    wide = {name: t.double() for name, t in tensors.items()}
    expected = attune.attention(q, k, v, is_causal=True, **wide)
    assert torch.equal(module(q, k, v), expected)  # tensors of float32
    assert torch.equal(module.double()(q, k, v), expected)
    recorded = module(q, k.requires_grad_(), v)
    torch.testing.assert_close(recorded.detach(), expected, rtol=0, atol=1e-14)
    attention = attune.MultiheadSelfAttention(48, 6).double().requires_grad_(False)
    x = torch.randn(2, 17, 48, dtype=torch.float64)
    q, k, v = (t.view(2, 17, 6, 8).transpose(1, 2) for t in attention.c_attn(x).split(48, 2))
    heads = torch_sdpa(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 17, 48)
    torch.testing.assert_close(attention(x), attention.c_proj(heads), rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sinks_of_transformers(dtype):
    q, k, v = qkv(2, 4, 9, 16)
    sinks = torch.randn(4).to(dtype)
    out, _ = attune.integrations._transformers_attention(
        torch.nn.Module(), q, k, v, None, s_aux=sinks
    )
    options = dict(is_causal=True, sinks=sinks.double())
    assert torch.equal(out.transpose(1, 2), attune.attention(q, k, v, **options))


def test_a_routed_call_stays_with_torch():
    q, k, v = qkv(1, 2, 9, 16)
    with attune.sdpa() as routed:
        torch_sdpa(q, k, v)
        torch_sdpa(query=q, key=k, value=v)
    assert routed.taken == 0 and "float64" in routed.report()
