"""A call is enqueued and no more: graphs, streams, devices, workspaces, and no memory taken."""

import math
import random
import time

import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch", reason="./x setup installs torch")
compare_cuda = pytest.importorskip("compare_cuda")
attune_ctypes = compare_cuda.attune_ctypes

# Whole tiles and ragged ones, one key range and several, every rung.
CASES = [
    ("2x8x512x64", "f16", "auto", True),
    ("4x32x1000x64", "bf16", "auto", False),
    ("4x16x1100x128", "bf16", "auto", True),
    ("1x32/8x1/4096x128", "bf16", "auto", False),
    ("2x4x300x64", "f32", "auto", False),
    ("1x2x200x64", "f32", "fused", True),
    ("1x2x200x64", "f32", "tiled", False),
    ("1x2x200x64", "f16", "naive", False),
]
IDS = ["-".join(map(str, case)) for case in CASES]


def make_inputs(shape, dtype, seed, device="cuda"):
    batch, heads, heads_kv, seq_q, seq_k, dim, dim_v = attune_ctypes.parse_shape(shape)
    generator = torch.Generator(device).manual_seed(seed)

    def values(*size):
        random = torch.randn(*size, generator=generator, device=device)
        return random.to(compare_cuda.DTYPES[dtype])

    return (
        values(batch, heads, seq_q, dim),
        values(batch, heads_kv, seq_k, dim),
        values(batch, heads_kv, seq_k, dim_v),
    )


def make_call(lib, shape, dtype, mode="auto", causal=False, seed=1, device="cuda"):
    q, k, v = make_inputs(shape, dtype, seed, device)
    out = compare_cuda.poisoned_output(q, v)
    call = attune_ctypes.CudaCall(
        lib,
        q,
        k,
        v,
        out,
        mode=attune_ctypes.MODES[mode],
        causal=int(causal),
        alignment=attune_ctypes.ALIGNMENTS["top_left"],
    )
    call.inputs = (q, k, v)
    return call


def result_of(call):
    call.out.fill_(math.nan)
    call.on_stream(torch.cuda.current_stream(call.out.device))()
    torch.cuda.synchronize(call.out.device)
    return call.out.clone()


def same_bits(a, b):
    integer = torch.int32 if a.dtype == torch.float32 else torch.int16
    return torch.equal(a.view(integer), b.view(integer))


def is_right(call, causal, dtype):
    inputs = (*call.inputs, None)
    rows = torch.arange(inputs[0].shape[2], device=inputs[0].device)
    expected = compare_cuda.float64_rows(inputs, causal, rows)
    return compare_cuda.compare(call.out, expected, dtype)[1] == ""


def capture(call):
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        call.on_stream(torch.cuda.current_stream())()
    torch.cuda.synchronize()
    return graph


@pytest.mark.parametrize("shape, dtype, mode, causal", CASES, ids=IDS)
def test_a_graph_replays_the_same_bits(lib, shape, dtype, mode, causal):
    call = make_call(lib, shape, dtype, mode, causal)
    eager = result_of(call)
    assert is_right(call, causal, dtype)
    call.out.fill_(math.nan)
    graph = capture(call)
    assert call.out.isnan().all(), "capturing must not run anything"
    graph.replay()
    torch.cuda.synchronize()
    assert same_bits(call.out, eager)

    # The graph reads its inputs when it is replayed.
    for tensor, other in zip(call.inputs, make_inputs(shape, dtype, seed=2), strict=True):
        tensor.copy_(other)
    call.out.fill_(math.nan)
    graph.replay()
    torch.cuda.synchronize()
    replayed = call.out.clone()
    assert not same_bits(replayed, eager)
    assert same_bits(replayed, result_of(call))


def test_a_prepared_call_can_be_captured_first(lib):
    """No call before the capture, and a head dimension that no other test here uses."""
    call = make_call(lib, "1x2x200x56", "f16", causal=True)
    lib.prepare(call.args)
    graph = capture(call)
    graph.replay()
    torch.cuda.synchronize()
    assert is_right(call, True, "f16")


@pytest.mark.parametrize("shape, dtype, mode, causal", CASES, ids=IDS)
def test_bits_repeat(lib, shape, dtype, mode, causal):
    call = make_call(lib, shape, dtype, mode, causal)
    first = result_of(call)
    for _ in range(20):
        assert same_bits(result_of(call), first)


@pytest.mark.parametrize("causal", [False, True])
def test_two_streams(lib, causal):
    """Both calls in flight at once; under a causal limit blocks take tiles from a counter."""
    shape, dtype = "2x16x1024x64", "f16"
    calls = [make_call(lib, shape, dtype, causal=causal, seed=seed) for seed in (1, 2)]
    expected = [result_of(call) for call in calls]
    for call in calls:
        call.out.fill_(math.nan)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    for _ in range(10):
        for call, stream in zip(calls, streams, strict=True):
            call.on_stream(stream)()
    torch.cuda.synchronize()
    for call, right in zip(calls, expected, strict=True):
        assert same_bits(call.out, right)


# Sizes of few tiles and of many, short and long, with ragged edges: 20 kernels or so.
MIXED = [
    (shape, dtype, causal)
    for shape in (
        *("1x8x512x64", "2x32x512x64", "4x32x1000x64", "1x3x65x64", "2x8x300/1100x64"),
        *("4x16x1100x128", "1x2x192x128", "8x8x512x256", "2x32/8x700x128", "1x4x2048x192"),
    )
    for dtype, causal in (("bf16", False), ("f16", True))
]


def test_ten_thousand_launches_of_mixed_sizes(lib):
    """In random order, without a pause: the bits of every output stay what they were alone."""
    calls = [make_call(lib, shape, dtype, causal=causal) for shape, dtype, causal in MIXED]
    alone = [result_of(call) for call in calls]
    for call, (_, dtype, causal) in zip(calls, MIXED, strict=True):
        assert is_right(call, causal, dtype)
    dice = random.Random(1)
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(10_000):
        n = dice.randrange(len(calls))
        calls[n].out.fill_(math.nan)
        calls[n]()
        wrong += (calls[n].out.view(torch.int16) != alone[n].view(torch.int16)).any()
    assert wrong.item() == 0


def test_work_is_in_the_order_of_its_stream(lib):
    """What is enqueued before on the same stream is seen; the host does not wait for it."""
    call = make_call(lib, "1x2x128x64", "f16")
    other = make_inputs("1x2x128x64", "f16", seed=2)
    result_of(call)
    stream = torch.cuda.Stream()
    call.on_stream(stream)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(400_000_000)  # a fifth of a second or more
        for tensor, new in zip(call.inputs, other, strict=True):
            tensor.copy_(new)
        begin = time.perf_counter()
        call()
        host = time.perf_counter() - begin
    assert not stream.query(), "the stream was to be busy still"
    assert host < 0.1
    torch.cuda.synchronize()
    assert is_right(call, False, "f16")


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.device_count() < 2,
    reason="there is only one CUDA device",
)
def test_a_second_device(lib):
    with torch.cuda.device(1):
        call = make_call(lib, "2x8x512x64", "f16", causal=True, device="cuda:1")
        result_of(call)
        assert is_right(call, True, "f16")
    result_of(make_call(lib, "2x8x512x64", "f16"))


@pytest.mark.parametrize("mode", ["tiled", "mma"])
@pytest.mark.parametrize("given", [0, 16])
def test_too_small_a_workspace_is_refused(lib, mode, given):
    """fp32 needs one in both: the scores, and the split operands."""
    call = make_call(lib, "2x4x300x64", "f32", mode)
    assert call.args.workspace_bytes > 16
    call.args.workspace_bytes = given
    if given == 0:
        call.args.workspace = None
    with pytest.raises(attune_ctypes.Error, match="workspace"):
        call()
    torch.cuda.synchronize()
    assert call.out.isnan().all(), "a call that fails has written nothing"


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_auto_does_without_a_workspace(lib, dtype):
    for shape in ("2x4x300x64", "1x8x1/3000x64"):
        call = make_call(lib, shape, dtype)
        call.args.workspace, call.args.workspace_bytes = None, 0
        result_of(call)
        assert is_right(call, False, dtype)


@pytest.mark.parametrize("shape, dtype, mode, causal", CASES, ids=IDS)
def test_the_workspace_is_enough_and_not_left(lib, shape, dtype, mode, causal):
    """Canaries behind it stay; what it held before does not matter."""
    call = make_call(lib, shape, dtype, mode, causal)
    first = result_of(call)
    size, margin = call.args.workspace_bytes, 4096
    buffer = torch.full((size + margin,), 0xA5, dtype=torch.uint8, device="cuda")
    call.args.workspace = buffer.data_ptr() if size else None
    assert same_bits(result_of(call), first)
    assert (buffer[size:] == 0xA5).all()
    buffer[:size] = 0xFF  # NaN in every dtype
    assert same_bits(result_of(call), first)
    assert (buffer[size:] == 0xA5).all()


@pytest.mark.parametrize("shape, dtype, mode, causal", CASES, ids=IDS)
def test_nothing_is_allocated(lib, shape, dtype, mode, causal):
    call = make_call(lib, shape, dtype, mode, causal)
    for _ in range(3):
        call()
    before = compare_cuda.free_bytes()
    for _ in range(100):
        call()
    assert compare_cuda.free_bytes() == before


def test_a_host_pointer_is_refused(lib):
    call = make_call(lib, "1x2x64x64", "f16")
    host = torch.zeros(1, 2, 64, 64, dtype=torch.float16)
    call.args.k.data = host.data_ptr()
    with pytest.raises(attune_ctypes.Error, match=r"\bk\b"):
        call()
    torch.cuda.synchronize()
    assert call.out.isnan().all()


def test_sizes_and_plans_need_no_memory(lib):
    """NULL data is enough to ask for the workspace, the plan and the compilation."""
    call = make_call(lib, "2x8x512x64", "f16")
    wanted = call.args.workspace_bytes
    for name in ("q", "k", "v", "out"):
        getattr(call.args, name).data = None
    assert lib.workspace_size(call.args) == wanted
    assert "mma" in lib.explain(call.args)["chosen"]
    lib.prepare(call.args)
