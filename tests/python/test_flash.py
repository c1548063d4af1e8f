"""FlashAttention-2's functions, against plain torch in float64."""

import attune
import pytest
import torch


def plain(q, k, v, keep=None, scale=None, softcap=0.0, bias=None):
    """[B,S,H,D] in float64; keep [.., Sq, Sk]."""
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    s = q @ k.transpose(-1, -2) * (scale or q.shape[-1] ** -0.5)
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    s = s if bias is None else s + bias
    if keep is not None:
        s = s.masked_fill(~keep, -torch.inf)
    p = torch.softmax(s, -1).nan_to_num(0.0)
    return (p @ v).transpose(1, 2), torch.logsumexp(s, -1)


def band(queries, keys, left, right):
    """Rows at the bottom right; None: no limit."""
    away = torch.arange(keys) - (torch.arange(queries)[:, None] + keys - queries)
    keep = torch.ones(queries, keys, dtype=torch.bool)
    keep &= away >= -left if left is not None else True
    keep &= away <= right if right is not None else True
    return keep


def qkv(queries=33, keys=47, heads=4, heads_kv=2, dim=32, batch=2):
    torch.manual_seed(0)
    return (
        torch.randn(batch, queries, heads, dim),
        torch.randn(batch, keys, heads_kv, dim),
        torch.randn(batch, keys, heads_kv, dim),
    )


def close(ours, expected):
    torch.testing.assert_close(ours.double(), expected, atol=3e-6, rtol=1e-6)


@pytest.mark.parametrize(
    "causal,window",
    [(False, (-1, -1)), (True, (-1, -1)), (True, (5, 0)), (False, (7, 3)), (False, (-1, 2))],
)
def test_flash_attn_func(causal, window):
    q, k, v = qkv()
    left, right = (None if side < 0 else side for side in window)
    keep = band(33, 47, left, 0 if causal else right)
    out, lse, probabilities = attune.flash_attn_func(
        q, k, v, 0.0, 0.2, causal, window, 15.0, return_attn_probs=True
    )
    expected, expected_lse = plain(q, k, v, keep, 0.2, 15.0)
    close(out, expected)
    close(lse, expected_lse)
    assert probabilities is None
    close(
        attune.flash_attn_func(q, k, v, causal=causal, window_size=window), plain(q, k, v, keep)[0]
    )


def test_slopes():
    q, k, v = qkv()
    slopes = torch.rand(4)
    away = (torch.arange(47) - (torch.arange(33)[:, None] + 14)).abs()
    expected, _ = plain(q, k, v, bias=-slopes[:, None, None].double() * away)
    close(attune.flash_attn_func(q, k, v, alibi_slopes=slopes), expected)


def test_flash_attn_varlen_func():
    torch.manual_seed(0)
    lengths = [(5, 9), (1, 30), (12, 12)]
    ends = [torch.tensor([0, *side]).cumsum(0).int() for side in zip(*lengths, strict=True)]
    q = torch.randn(18, 4, 16)
    k, v = torch.randn(2, 51, 2, 16)
    out, lse, _ = attune.flash_attn_varlen_func(
        q, k, v, *ends, 12, 30, causal=True, return_attn_probs=True
    )
    assert lse.shape == (4, 18)
    for n, (queries, keys) in enumerate(lengths):
        rows = slice(ends[0][n], ends[0][n + 1])
        some = slice(ends[1][n], ends[1][n + 1])
        expected, expected_lse = plain(
            q[None, rows], k[None, some], v[None, some], band(queries, keys, None, 0)
        )
        close(out[None, rows], expected)
        close(lse[None, :, rows], expected_lse)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["none", "number", "tensor"])
def test_flash_attn_with_kvcache(causal, kind):
    q, k, v = qkv(queries=3, keys=40)
    lengths = {"none": None, "number": 21, "tensor": torch.tensor([13, 40], dtype=torch.int32)}[
        kind
    ]
    out = attune.flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths, causal=causal)
    for b in range(2):
        keys = 40 if lengths is None else lengths if kind == "number" else int(lengths[b])
        keep = band(3, keys, None, 0 if causal else None)
        expected, _ = plain(q[b, None], k[b, None, :keys], v[b, None, :keys], keep)
        close(out[b, None], expected)


def masked(q, k_cache, v_cache, lengths, causal, window, slopes):
    """A cache by what attune.attention had before key lengths: a mask for each sequence."""
    queries, keys = q.shape[1], k_cache.shape[1]
    at = torch.arange(queries)[:, None] - queries + lengths[:, None, None]
    away = torch.arange(keys) - at
    keep = (torch.arange(keys) < lengths[:, None, None]).expand_as(away)
    left, right = window
    keep = keep & (away >= -left) if left >= 0 else keep
    right = 0 if causal else right
    keep = keep & (away <= right) if right >= 0 else keep
    bias = torch.zeros(len(lengths), q.shape[2], queries, keys)
    if slopes is not None:
        bias = bias - slopes[:, None, None] * away[:, None].abs()
    bias = bias.masked_fill(~keep[:, None], -torch.inf)
    return attune.attention(q, k_cache, v_cache, mask=bias, layout="bshd", return_lse=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [(-1, -1), (5, 0), (9, 4)])
@pytest.mark.parametrize("slopes", [None, torch.tensor([0.5, 0.25, 0.125, 1.0])])
@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_tensor_of_lengths_is_as_a_mask(causal, window, slopes, queries, dtype):
    torch.manual_seed(0)
    lengths = torch.tensor([13, 40, 0, 2, 17], dtype=dtype)
    q = torch.randn(5, queries, 4, 32)
    k, v = torch.randn(2, 5, 40, 2, 32).unbind(0)
    options = dict(causal=causal, window_size=window, alibi_slopes=slopes)
    out, lse = attune.flash_attn_with_kvcache(
        q, k, v, cache_seqlens=lengths, return_softmax_lse=True, **options
    )
    expected, expected_lse = masked(q, k, v, lengths, causal, window, slopes)
    torch.testing.assert_close(out, expected, atol=3e-6, rtol=1e-6)
    torch.testing.assert_close(lse, expected_lse, atol=3e-6, rtol=1e-6)
    for b, keys in enumerate(lengths.tolist()):
        keep = band(queries, keys, *(None if side < 0 else side for side in window))
        keep &= band(queries, keys, None, 0 if causal else None)
        away = (torch.arange(keys) - (torch.arange(queries)[:, None] + keys - queries)).abs()
        bias = None if slopes is None else -slopes[:, None, None].double() * away
        if keys > 0:
            exact, exact_lse = plain(
                q[b, None], k[b, None, :keys], v[b, None, :keys], keep, bias=bias
            )
            close(out[b, None], exact)
            close(lse[b, None], exact_lse)
        else:
            assert out[b].abs().max() == 0 and (lse[b] == -torch.inf).all()
    # What stands past the lengths is nobody's business.
    for t in (k, v):
        for b, keys in enumerate(lengths.tolist()):
            t[b, keys:] = torch.nan
    again = attune.flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths, **options)
    assert torch.equal(again, out)


@pytest.mark.parametrize("lengths", [10, torch.tensor([4, 17], dtype=torch.int32)])
def test_new_keys_go_into_the_cache(lengths):
    q, k_cache, v_cache = qkv(queries=2, keys=30)
    _, k, v = qkv(queries=2, keys=2)
    before = k_cache.clone()
    out = attune.flash_attn_with_kvcache(
        q, k_cache, v_cache, k, v, cache_seqlens=lengths, causal=True
    )
    for b in range(2):
        at = lengths if isinstance(lengths, int) else int(lengths[b])
        assert torch.equal(k_cache[b, at : at + 2], k[b])
        assert torch.equal(k_cache[b, :at], before[b, :at])
        keys = slice(0, at + 2)
        expected, _ = plain(
            q[b, None], k_cache[b, None, keys], v_cache[b, None, keys], band(2, at + 2, None, 0)
        )
        close(out[b, None], expected)


@pytest.mark.parametrize("name", ["rotary_cos", "block_table", "cache_batch_idx", "cache_leftpad"])
def test_what_is_not_there_is_named(name):
    q, k, v = qkv(queries=1)
    with pytest.raises(NotImplementedError, match=name):
        attune.flash_attn_with_kvcache(q, k, v, **{name: torch.zeros(1)})


def test_a_cache_is_not_touched_by_a_refused_call():
    torch.manual_seed(0)
    q, new = torch.randn(2, 1, 4, 16), torch.randn(2, 1, 2, 16)
    k_cache, v_cache = torch.randn(2, 20, 2, 16), torch.randn(2, 20, 2, 16)
    before = k_cache.clone(), v_cache.clone()
    lengths = torch.tensor([3, 4], dtype=torch.int32)
    wrong = [
        dict(k=new[:1], v=new[:1], cache_seqlens=lengths),
        dict(k=new[:, :, :1], v=new[:, :, :1], cache_seqlens=lengths),
        dict(k=torch.randn(2, 2, 2, 16), v=new, cache_seqlens=3),
        dict(k=new, v=new, cache_seqlens=-2),
        dict(k=new, v=new, cache_seqlens=20),
        dict(k=new, v=new, cache_seqlens=torch.tensor([3, 20], dtype=torch.int32)),
        dict(k=new, v=new, cache_seqlens=lengths.float()),
        dict(k=new, v=new, cache_seqlens=lengths[:1]),
        dict(k=new.clone().requires_grad_(), v=new, cache_seqlens=lengths),
        dict(cache_seqlens=-3),
        dict(cache_seqlens=50),
    ]
    for arguments in wrong:
        with pytest.raises((ValueError, NotImplementedError)):
            attune.flash_attn_with_kvcache(q, k_cache, v_cache, **arguments)
        assert torch.equal(k_cache, before[0]) and torch.equal(v_cache, before[1])
