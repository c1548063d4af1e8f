"""attune.scaled_dot_product_attention beside torch's: the same arguments, the same results."""

import itertools

import attune
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as torch_sdpa

LIMITS = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
SHAPES = [  # q's leading dimensions and length, keys, D, Dv
    ((1, 1), 1, 1, 8, 8),
    ((2, 4), 17, 17, 64, 64),
    ((1, 2), 5, 130, 32, 32),
    ((2, 2), 130, 5, 16, 24),
    ((3,), 9, 9, 16, 16),
    ((), 7, 11, 16, 16),
    ((2, 1, 3), 9, 9, 8, 8),
]


def exact(q, k, v, mask, causal, scale, gqa):
    q, k, v = (x.double() for x in (q, k, v))
    mask = mask.double() if mask is not None and mask.dtype != torch.bool else mask
    return torch_sdpa(q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=gqa)


def strided(x, how):
    if how == "transposed" and x.dim() >= 3:
        return x.transpose(-2, -3).contiguous().transpose(-2, -3)
    if how == "columns":
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    if how == "sliced":
        return torch.cat([x, x], -1)[..., : x.shape[-1]]
    return x


def cases():
    kinds = itertools.product(
        SHAPES,
        LIMITS,
        ["none", "causal", "bool", "bias", "row"],
        ["plain", "transposed", "columns", "sliced"],
    )
    for n, (shape, dtype, mask, stride) in enumerate(kinds):
        if n % 3 == 0 or stride == "plain":  # every pair of values, not every combination
            yield pytest.param(shape, dtype, mask, stride, id=f"{n}-{mask}-{stride}")


@pytest.mark.parametrize("shape,dtype,mask,stride", list(cases()))
def test_parity(shape, dtype, mask, stride):
    lead, queries, keys, dim, dim_v = shape
    torch.manual_seed(queries)
    q, k, v = (
        strided(torch.randn(*lead, length, size).to(dtype), stride)
        for length, size in ((queries, dim), (keys, dim), (keys, dim_v))
    )
    attn_mask = {
        "bool": torch.rand(queries, keys) < 0.7,
        "bias": torch.randn(*lead, queries, keys).to(dtype),
        "row": torch.randn(1, keys).to(dtype),
    }.get(mask)
    if mask == "bool":
        attn_mask[:, 0] = True
    scale = 0.3 if stride == "sliced" else None
    out = attune.scaled_dot_product_attention(q, k, v, attn_mask, 0.0, mask == "causal", scale)
    expected = exact(q, k, v, attn_mask, mask == "causal", scale, False)
    assert out.dtype == dtype and out.shape == expected.shape
    size = max(1.0, expected.abs().max().item())
    assert (out.double() - expected).abs().max().item() <= LIMITS[dtype] * size


@pytest.mark.parametrize("heads,heads_kv", [(8, 2), (4, 1), (3, 3)])
def test_groups_of_heads(heads, heads_kv):
    q = torch.randn(2, heads, 20, 32)
    k, v = torch.randn(2, 2, heads_kv, 20, 32)
    out = attune.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(
        out.double(), exact(q, k, v, None, True, None, True), atol=3e-6, rtol=0
    )


def test_a_row_without_keys_is_zero():
    q, k, v = torch.randn(3, 1, 1, 4, 8)
    mask = torch.zeros(4, 4, dtype=torch.bool)
    mask[1:] = True
    assert attune.scaled_dot_product_attention(q, k, v, mask)[..., 0, :].abs().max() == 0


@pytest.mark.parametrize("batch,queries,keys", [(0, 3, 3), (2, 0, 3), (2, 3, 0), (2, 0, 0)])
def test_nothing_to_do(batch, queries, keys):
    q, k, v = (torch.randn(batch, 2, length, 8) for length in (queries, keys, keys))
    out = attune.scaled_dot_product_attention(q, k, v)
    assert out.shape == (batch, 2, queries, 8)
    assert out.abs().sum() == 0


def test_dropout_keeps_the_mean():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 4, 8, 64, 32)
    v = v.abs() + 1
    out = attune.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
    other = attune.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
    plain = attune.scaled_dot_product_attention(q, k, v)
    assert not torch.equal(out, other)
    assert abs(out.mean() / plain.mean() - 1) < 0.05
    torch.manual_seed(0)
    torch.randn(3, 4, 8, 64, 32)
    assert torch.equal(out, attune.scaled_dot_product_attention(q, k, v, dropout_p=0.5))


def test_bad_input_is_named():
    q, k, v = torch.randn(3, 2, 4, 8, 16)
    with pytest.raises(RuntimeError, match="enable_gqa"):
        attune.scaled_dot_product_attention(q, k[:, :2], v[:, :2])
    with pytest.raises(RuntimeError, match="dtype"):
        attune.scaled_dot_product_attention(q.long(), k.long(), v.long())
    with pytest.raises(RuntimeError, match="k"):
        attune.scaled_dot_product_attention(q, k[..., :8], v)
    for scale in (0.0, -1.0, 1e-50, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="scale"):
            attune.scaled_dot_product_attention(q, k, v, scale=scale)
    for p in (-1.0, 1.0, float("nan")):
        with pytest.raises(ValueError, match="dropout_p"):
            attune.scaled_dot_product_attention(q, k, v, dropout_p=p)
    with pytest.raises(RuntimeError, match="meta|device"):
        attune.scaled_dot_product_attention(q, k.to("meta"), v)
    with pytest.raises(TypeError, match="torch tensor"):
        attune.scaled_dot_product_attention(q, k.numpy(), v)


def test_the_package_has_exceptions_of_its_own():
    q, k, v = torch.randn(3, 2, 4, 8, 16)
    with pytest.raises(attune.InvalidArgument, match="heads"):
        attune.scaled_dot_product_attention(q, k[:, :2], v[:, :2])
    with pytest.raises(attune.Unsupported, match="tiled"):
        attune.attention(q, k, v, mode="tiled")


BROADCASTS = {
    "batch of k": ((2, 4, 9, 16), (1, 4, 9, 16)),
    "batch of q": ((1, 4, 9, 16), (2, 4, 9, 16)),
    "heads of k": ((2, 4, 9, 16), (2, 1, 9, 16)),
    "heads of q": ((2, 1, 9, 16), (2, 4, 9, 16)),
    "ranks": ((2, 4, 9, 16), (4, 9, 16)),
    "more ranks": ((4, 9, 16), (3, 2, 4, 9, 16)),
    "leading": ((3, 1, 4, 9, 16), (1, 2, 4, 9, 16)),
}


@pytest.mark.parametrize("case", BROADCASTS)
@pytest.mark.parametrize("masked", [False, True])
def test_broadcasting(case, masked):
    q_shape, k_shape = BROADCASTS[case]
    q, k, v = torch.randn(q_shape), torch.randn(k_shape), torch.randn(k_shape)
    mask = torch.rand(9, 9) < 0.7 if masked else None
    out = attune.scaled_dot_product_attention(q, k, v, mask)
    lead = torch.broadcast_shapes(q_shape[:-2], k_shape[:-2])
    wide = (t.expand(*lead, *t.shape[-2:]) for t in (q, k, v))
    expected = torch.nan_to_num(torch_sdpa(*wide, mask))
    torch.testing.assert_close(out, expected, atol=2e-6, rtol=1e-5)
    meta = (t.to("meta") for t in (q, k, v))
    assert attune.scaled_dot_product_attention(*meta).shape == out.shape


def test_three_dimensions_have_heads():
    q, (k, v) = torch.randn(8, 9, 16), torch.randn(2, 2, 9, 16)
    expected = torch_sdpa(q, k.repeat_interleave(4, 0), v.repeat_interleave(4, 0))
    out = attune.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    torch.testing.assert_close(out, expected, atol=2e-6, rtol=1e-5)
    assert attune.scaled_dot_product_attention(q, q, q, dropout_p=0.1).shape == q.shape


@pytest.mark.parametrize("keys", [9, 12])
def test_torchs_causal_masks(keys):
    from torch.nn.attention.bias import causal_lower_right, causal_upper_left

    q, k, v = torch.randn(2, 2, 9, 16), torch.randn(2, 2, keys, 16), torch.randn(2, 2, keys, 16)
    for make, diagonal in ((causal_upper_left, 0), (causal_lower_right, keys - 9)):
        expected = torch_sdpa(q, k, v, torch.ones(9, keys).bool().tril(diagonal))
        for call in (attune.scaled_dot_product_attention, torch_sdpa):
            with attune.sdpa():
                out = call(q, k, v, make(9, keys))
            torch.testing.assert_close(out, expected, atol=2e-6, rtol=1e-5)
        out = attune.attention(q, k, v, mask=make(9, keys))
        torch.testing.assert_close(out, expected, atol=2e-6, rtol=1e-5)


def test_a_mask_and_causal_join():
    q, k, v = torch.randn(3, 2, 4, 8, 16)
    mask = torch.rand(8, 8) < 0.6
    out = attune.scaled_dot_product_attention(q, k, v, mask, is_causal=True)
    expected = torch.nan_to_num(torch_sdpa(q, k, v, mask.tril()))
    torch.testing.assert_close(out, expected, atol=2e-6, rtol=1e-5)


class Tagged(torch.Tensor):
    pass


def test_a_subclass_stays_one():
    q, k, v = torch.randn(3, 2, 4, 8, 16)
    expected = attune.scaled_dot_product_attention(q, k, v)
    for call in (attune.scaled_dot_product_attention, attune.attention):
        out = call(q.as_subclass(Tagged), k, v)
        assert type(out) is Tagged and torch.equal(out.as_subclass(torch.Tensor), expected)
