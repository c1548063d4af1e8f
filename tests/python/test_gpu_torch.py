"""CUDA tensors: torch's streams, graphs and devices, and the same results as on the CPU."""

import attune
import pytest

torch = pytest.importorskip("torch")
from torch.nn.functional import scaled_dot_product_attention as torch_sdpa  # noqa: E402

pytestmark = pytest.mark.gpu
LIMITS = {torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.fixture(autouse=True)
def device():
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")


def qkv(*shape, dtype=torch.float16, seed=0):
    torch.manual_seed(seed)
    return (torch.randn(3, *shape, device="cuda").to(dtype)).unbind(0)


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("shape", [(2, 4, 17, 64), (1, 8, 512, 64), (2, 2, 130, 128), (1, 1, 1, 8)])
@pytest.mark.parametrize("kind", ["none", "causal", "bool", "bias", "columns"])
def test_parity(dtype, shape, kind):
    q, k, v = qkv(*shape, dtype=dtype)
    mask = None
    if kind == "bool":
        mask = torch.rand(shape[2], shape[2], device="cuda") < 0.7
        mask[:, 0] = True
    if kind == "bias":
        mask = torch.randn(1, 1, shape[2], shape[2], device="cuda").to(dtype)
    if kind == "columns":
        q, k, v = (t.transpose(-1, -2).contiguous().transpose(-1, -2) for t in (q, k, v))
    causal = kind == "causal"
    out = attune.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)
    wide = mask.double() if mask is not None and mask.dtype != torch.bool else mask
    expected = torch_sdpa(q.double(), k.double(), v.double(), wide, is_causal=causal)
    size = max(1.0, expected.abs().max().item())
    assert (out.double() - expected).abs().max().item() <= LIMITS[dtype] * size


@pytest.mark.parametrize("mode", ["naive", "tiled", "fused", "mma", "wgmma", "auto"])
def test_rungs(mode):
    if mode == "wgmma" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma needs compute capability 9.0")
    q, k, v = qkv(2, 4, 100, 64)
    out, lse = attune.attention(q, k, v, mode=mode, is_causal=True, return_lse=True)
    host = [t.cpu() for t in (q, k, v)]
    expected, expected_lse = attune.reference_attention(*host, is_causal=True, return_lse=True)
    torch.testing.assert_close(out.cpu(), expected, atol=2e-3, rtol=0)
    torch.testing.assert_close(lse.cpu(), expected_lse, atol=2e-3, rtol=0)


# Enough tiles for every multiprocessor, so that blocks go from tile to tile.
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [64, 128, 256, 100, 34, 33])
@pytest.mark.parametrize("layout", ["contiguous", "shifted", "expanded"])
def test_hopper_takes_tensors_that_tma_cannot_reach(layout, dim, causal):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma needs compute capability 9.0")
    batch, heads, seq = 4, 16, 1040
    shift = 2 if layout == "shifted" else 0
    q, k, v = qkv(batch, heads, seq, dim + 2 * shift)
    if shift:
        q, k, v = (t[..., shift - 1 : shift - 1 + dim] for t in (q, k, v))
    if layout == "expanded":
        k, v = (t[:, :1].expand(-1, heads, -1, -1) for t in (k, v))
    out, lse = attune.attention(q, k, v, mode="wgmma", is_causal=causal, return_lse=True)
    again = attune.attention(q, k, v, mode="wgmma", is_causal=causal)
    expected = torch_sdpa(q.float(), k.float(), v.float(), is_causal=causal)
    torch.testing.assert_close(out.float(), expected, atol=4e-3, rtol=0)
    torch.testing.assert_close(again.float(), expected, atol=4e-3, rtol=0)
    scores = q[0, 0].float() @ k[0, 0].float().T / dim**0.5
    if causal:
        scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    torch.testing.assert_close(lse[0, 0], scores.logsumexp(-1), atol=2e-3, rtol=0)


def test_the_current_stream_is_used():
    q, k, v = qkv(4, 16, 1024, 64)
    expected = attune.scaled_dot_product_attention(q, k, v)
    side = torch.cuda.Stream()
    for _ in range(5):
        late = torch.empty_like(q)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            late.copy_(q)
            out = attune.scaled_dot_product_attention(late, k, v)
        side.synchronize()
        assert torch.equal(out, expected)


def test_a_graph_is_captured_and_replayed():
    q, k, v = qkv(2, 8, 256, 64)
    mask = torch.zeros(256, 256, device="cuda", dtype=torch.float16)
    for options in ({"is_causal": True}, {"mask": mask}, {"softcap": 20.0, "return_lse": True}):
        attune.attention(q, k, v, **options)  # compiles
        graph = torch.cuda.CUDAGraph()
        inputs = q.clone()
        with torch.cuda.graph(graph):
            out = attune.attention(inputs, k, v, **options)
        other = torch.randn_like(q)
        inputs.copy_(other)
        graph.replay()
        expected = attune.attention(other, k, v, **options)
        pairs = zip(out, expected, strict=True) if isinstance(out, tuple) else [(out, expected)]
        for ours, theirs in pairs:
            assert torch.equal(ours, theirs)


def test_compile_in_one_graph():
    compiled = torch.compile(
        lambda q, k, v: attune.scaled_dot_product_attention(q * 2, k, v, is_causal=True) + 1,
        fullgraph=True,
    )
    q, k, v = qkv(2, 4, 64, 64)
    expected = attune.scaled_dot_product_attention(q * 2, k, v, is_causal=True) + 1
    torch.testing.assert_close(compiled(q, k, v), expected)


def test_opcheck():
    q, k, v = qkv(1, 2, 32, 64)
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    args = (q, k, v, None, True, 0.0, False)
    torch.library.opcheck(torch.ops.attune.sdpa.default, args, test_utils=tests)


def test_outputs_lie_as_the_queries_do():
    q, k, v = (t.transpose(1, 2) for t in qkv(2, 33, 4, 64))
    for options in ({}, {"softcap": 5.0}):
        out = attune.attention(q, k, v, **options)
        assert out.stride() == q.stride()
        assert torch.equal(out, attune.attention(q.contiguous(), k, v, **options))
    args = (q, k, v, None, True, 0.0, False)
    torch.library.opcheck(
        torch.ops.attune.sdpa.default, args, test_utils=("test_faketensor", "test_schema")
    )


def test_a_recorded_call_is_torchs(monkeypatch):
    monkeypatch.setattr(attune._fallback, "_warned", True)
    q, k, v = qkv(2, 4, 33, 64)
    for options in ({"is_causal": True}, {"softcap": 5.0, "window": (7, 0)}):
        expected = attune.attention(q, k, v, **options)
        recorded = q.clone().requires_grad_()
        out = attune.attention(recorded, k, v, **options)
        torch.testing.assert_close(out, expected, atol=4e-3, rtol=0)
        out.sum().backward()
        assert recorded.grad.abs().sum() > 0


def test_out_of_memory_has_its_exception():
    huge = torch.randn(1, 1, 1, 8, device="cuda").expand(2**20, 2**10, 2**10, 8)  # out: 32 TiB
    with pytest.raises(attune.OutOfMemory) as raised:
        attune.scaled_dot_product_attention(huge, huge, huge)
    assert isinstance(raised.value, torch.OutOfMemoryError)
    q, k, v = qkv(1, 2, 32, 64)  # and later calls are right
    torch.testing.assert_close(
        attune.scaled_dot_product_attention(q, k, v), torch_sdpa(q, k, v), atol=4e-3, rtol=0
    )


def test_autocast():
    q, k, v = qkv(1, 2, 32, 64, dtype=torch.float32)
    with torch.autocast("cuda", torch.bfloat16):
        assert attune.scaled_dot_product_attention(q, k, v).dtype == torch.bfloat16


def test_tensors_of_two_devices_are_refused():
    q, k, v = qkv(1, 2, 8, 16)
    with pytest.raises(RuntimeError, match="device"):
        attune.attention(q, k.cpu(), v)


def test_flash_functions():
    q = torch.randn(2, 33, 4, 64, device="cuda").half()
    k, v = torch.randn(2, 2, 47, 2, 64, device="cuda").half()
    out, lse, _ = attune.flash_attn_func(
        q, k, v, causal=True, window_size=(9, 0), return_attn_probs=True
    )
    host = attune.flash_attn_func(q.cpu(), k.cpu(), v.cpu(), causal=True, window_size=(9, 0))
    torch.testing.assert_close(out.cpu(), host, atol=2e-3, rtol=0)
    assert lse.shape == (2, 4, 33)
    ends = torch.tensor([0, 10, 33], dtype=torch.int32, device="cuda")
    ragged = attune.flash_attn_varlen_func(q[0], q[0], q[0], ends, ends, 23, 23, causal=True)
    host = attune.flash_attn_varlen_func(*[q[0].cpu()] * 3, *[ends.cpu()] * 2, 23, 23, causal=True)
    torch.testing.assert_close(ragged.cpu(), host, atol=2e-3, rtol=0)
    lengths = torch.tensor([5, 47], dtype=torch.int32, device="cuda")
    out = attune.flash_attn_with_kvcache(q[:, :1], k, v, cache_seqlens=lengths)
    host = attune.flash_attn_with_kvcache(
        q[:, :1].cpu(), k.cpu(), v.cpu(), cache_seqlens=lengths.cpu()
    )
    torch.testing.assert_close(out.cpu(), host, atol=2e-3, rtol=0)


@pytest.mark.parametrize("mode", ["auto", "naive", "tiled", "fused", "mma"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("queries", [1, 3, 150])
def test_key_lengths(mode, dtype, queries):
    torch.manual_seed(0)
    q = torch.randn(5, 8, queries, 64, device="cuda").to(dtype)
    k, v = torch.randn(2, 5, 2, 500, 64, device="cuda").to(dtype).unbind(0)
    lengths = torch.tensor([500, 0, 17, 130, 2], dtype=torch.int32, device="cuda")
    options = dict(is_causal=True, causal_alignment="bottom_right", window=(200, None))
    options |= dict(alibi_slopes=torch.rand(8, device="cuda"), return_lse=True)
    host = {n: t.cpu() if isinstance(t, torch.Tensor) else t for n, t in options.items()}
    expected = attune.attention(q.cpu(), k.cpu(), v.cpu(), key_lengths=lengths.cpu(), **host)
    for b, n in enumerate(lengths.tolist()):
        k[b, :, n:] = v[b, :, n:] = torch.nan
    torch.cuda.set_sync_debug_mode("error")
    try:
        results = attune.attention(q, k, v, key_lengths=lengths, mode=mode, **options)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for ours, theirs in zip(results, expected, strict=True):
        limit = 2e-3 if dtype == torch.float16 else 3e-5
        torch.testing.assert_close(ours.cpu(), theirs, atol=limit, rtol=limit)


def test_key_lengths_beyond_the_cache_read_nothing_outside():
    q, k, v = (t.half() for t in qkv(4, 8, 64, 64))
    wild = torch.tensor([-7, 65, 2**31 - 1, -(2**31)], dtype=torch.int32, device="cuda")
    tame = torch.tensor([0, 64, 64, 0], dtype=torch.int32, device="cuda")
    results = [attune.attention(q, k, v, key_lengths=lengths) for lengths in (wild, tame)]
    assert torch.equal(*results)


def test_explain():
    q, k, v = qkv(1, 8, 512, 64)
    said = attune.explain(q, k, v)
    assert any(c["chosen"] and "mma" in json_text(c) for c in said["candidates"])


def json_text(value):
    import json

    return json.dumps(value)
