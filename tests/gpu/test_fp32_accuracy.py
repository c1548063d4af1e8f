"""fp32 on tensor cores is as good as fp32: beside PyTorch's own, both against float64."""

import math

import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch", reason="./x setup installs torch")
compare_cuda = pytest.importorskip("compare_cuda")
attune_ctypes = compare_cuda.attune_ctypes

MODES = ["mma", "wgmma"]  # that split fp32
SHAPES = ["4x8x1024x64", "2x4x1000x128", "1x4/2x777x96", "2x2x65/400x64"]
LONG = "1x1x16384x64"  # where an accumulator that truncates would show
ROUNDING = 2.0**-24  # of the result itself; PyTorch may be lucky


@pytest.fixture(params=MODES)
def mode(request):
    if request.param == "wgmma" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma needs compute capability 9.0")
    return request.param


def attend(lib, inputs, mode, causal=False, **fields):
    q, k, v = inputs
    call = attune_ctypes.CudaCall(
        lib,
        q,
        k,
        v,
        compare_cuda.poisoned_output(q, v),
        mode=attune_ctypes.MODES[mode],
        causal=int(causal),
        alignment=attune_ctypes.ALIGNMENTS["top_left"],
        **fields,
    )
    return call()


def exact(inputs, causal=False):
    rows = torch.arange(inputs[0].shape[2], device="cuda")
    return compare_cuda.float64_rows((*inputs, None), causal, rows)


def judge(row):
    """The error of ours, and what PyTorch's own fp32 allows."""
    errors, ours = row["errors"], row["ours"]
    assert errors.keys() >= {ours, "efficient"}, row["refused"]
    return errors[ours], 2 * errors["efficient"] + ROUNDING * row["largest"]


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("shape", [*SHAPES, LONG])
@pytest.mark.parametrize("kind", compare_cuda.FP32_INPUTS)
def test_error_beside_pytorchs(lib, kind, shape, causal, mode):
    if shape == LONG and (kind != "normal" or causal):
        pytest.skip("the long shape is for sums of many terms")
    row = compare_cuda.accuracy_row(lib, kind, shape, causal, (mode,), seed=1)
    error, limit = judge(row)
    print(f"{kind} {shape}: {row['errors']}, norms {row['norms']}")
    assert error <= limit, row
    if mode == "wgmma":  # a score of 128 products is cut off eight times, which mixed rows show
        factor = 1.5 if kind == "mixed" and shape == "2x4x1000x128" else 1
        assert row["norms"][mode] <= factor * row["norms"]["efficient"], row
    if kind == "normal":
        assert error <= 1e-5, row
        if mode == "wgmma" and shape == "2x4x1000x128":  # 4e-7 where nothing makes up for the cuts
            assert row["norms"][mode] <= 3.2e-7, row


def test_a_mean_in_v_shows_no_bias(lib, mode):
    """Sums that all have one sign: truncation would grow with the sequence."""
    q, k, v = compare_cuda.fp32_inputs("normal", LONG, seed=2)
    v += 1.0
    expected = exact((q, k, v))
    bias = ((attend(lib, (q, k, v), mode).double() - expected) / expected).mean().item()
    assert abs(bias) < 2e-6


def test_auto_takes_tensor_cores_and_strict_does_not(lib):
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("tensor cores for fp32 need compute capability 8.0")
    q, k, v = compare_cuda.fp32_inputs("normal", "4x8x512x64", seed=1)
    out = torch.empty_like(q)
    best = "wgmma" if torch.cuda.get_device_capability() == (9, 0) else "mma"
    for strict, mode in ((0, best), (1, "fused")):
        call = attune_ctypes.CudaCall(lib, q, k, v, out, strict_fp32=strict)
        assert lib.explain(call.args)["mode"] == mode
        call()
        assert compare_cuda.compare(out, exact((q, k, v)), "f32")[1] == ""


# --- infinities and NaN ---------------------------------------------------------------------------

INF, NAN = math.inf, math.nan
LARGE = 3e38  # finite in fp32, far beyond fp16
SPECIAL = {
    "v_inf": [("v", 70, 3, INF)],
    "v_minus_inf": [("v", 70, 3, -INF)],
    "v_both": [("v", 5, 3, INF), ("v", 130, 3, -INF)],
    "v_nan": [("v", 70, 3, NAN)],
    "v_large": [("v", 70, 3, LARGE)],
    "v_large_both": [("v", 5, 3, LARGE), ("v", 130, 3, -LARGE)],
    "k_inf": [("k", 70, 3, INF)],
    "k_nan": [("k", 70, 3, NAN)],
    "k_large": [("k", 70, 3, 1e30)],
    "q_inf": [("q", 7, 3, INF)],
    "q_nan": [("q", 7, 3, NAN)],
    "q_large": [("q", 7, 3, 1e30)],
}


def kinds(values):
    """0 for a finite number, 1 for NaN, 2 for +inf, 3 for -inf."""
    result = values.isnan().int()
    result[values == INF] = 2
    result[values == -INF] = 3
    return result


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("name", SPECIAL)
def test_non_finite_values_are_of_the_kind_of_plain_fp32(lib, name, causal, mode):
    q, k, v = compare_cuda.fp32_inputs("normal", "1x2x200x64", seed=3)
    tensors = {"q": q, "k": k, "v": v}
    for which, row, column, value in SPECIAL[name]:
        tensors[which][:, :, row, column] = value
    ours = attend(lib, (q, k, v), mode, causal)
    fused = attend(lib, (q, k, v), "fused", causal)
    assert torch.equal(kinds(ours), kinds(fused))

    # PyTorch multiplies weights of 0 with V, so that masked keys leak there: not beside causal.
    if not causal:
        peer = compare_cuda.torch_variant("math", (q, k, v, None), causal)
        with peer.context():
            assert torch.equal(kinds(ours), kinds(peer.run()))

    # With mma values share the exponent of their tile: beside one of 1e30 they have no digits left,
    # and what is asked for there is only that nothing overflows. wgmma notices.
    if "large" in name and mode == "mma":
        return
    finite = ours.isfinite()
    expected = fused.double()[finite]
    error = (ours.double()[finite] - expected).abs()
    assert (error <= 2e-5 * (1 + expected.abs())).all()


def test_what_is_not_finite_stays_in_its_rows(lib, mode):
    """A NaN in one query row, and in one column of V."""
    q, k, v = compare_cuda.fp32_inputs("normal", "1x2x200x64", seed=4)
    clean = attend(lib, (q, k, v), mode).clone()
    q[:, :, 9] = NAN
    v[:, :, 50, 7] = NAN
    out = attend(lib, (q, k, v), mode)
    touched = torch.zeros_like(out, dtype=torch.bool)
    touched[:, :, 9] = True
    touched[:, :, :, 7] = True
    assert torch.equal(out.isnan(), touched)
    assert (out - clean)[~touched].abs().max().item() < 1e-5


# --- numbers of very different size in one tile ---------------------------------------------------
#
# A tile of keys shares a power of two. Where that would cost small rows the bits that matter, wgmma
# computes them again; mma makes no such promise.


@pytest.fixture
def wgmma():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma needs compute capability 9.0")
    return "wgmma"


def huge_last_key(q, k, v, factor):
    """Forbidden to all rows but the last by a causal limit; v too: a weight of 0 must be 0."""
    k[:, :, -1] *= factor
    v[:, :, -1] *= factor


def huge_key(q, k, v, factor):
    k[:, :, 40] *= factor


def orthogonal_key(q, k, v, factor):
    """Large where Q is 0: the key matters no more than others."""
    q[..., 0] = 0
    k[:, :, 40, 0] = factor


def opposed_key(q, k, v, factor):
    """So far below the others that its weight is 0, and theirs are all there is."""
    q[..., 0] = 1
    k[:, :, 40, 0] = -factor


def lone_value(q, k, v, factor):
    """Under a weight of 0."""
    q[..., 0] = 30
    k[:, :, 40, 0] = -30
    v[:, :, 40] *= factor


def small_weight_on_large_value(q, k, v, factor):
    """What is nearly forgotten decides the result."""
    q[..., 0] = 4
    k[..., 0] = 0
    k[:, :, 40, 0] = -30  # 15 below the others, as a score
    v[:, :, 40] *= factor


def lognormal_rows(q, k, v, factor):
    generator = torch.Generator("cuda").manual_seed(9)
    for tensor in (q, k, v):
        spread = torch.randn(*tensor.shape[:3], 1, generator=generator, device="cuda")
        tensor *= torch.exp(math.log10(factor) / 2 * spread)


UNEVEN = [
    huge_last_key,
    huge_key,
    orthogonal_key,
    opposed_key,
    lone_value,
    small_weight_on_large_value,
    lognormal_rows,
]


def rounding_of(inputs, causal):
    """What fp32 itself may be off by in each row: a few roundings of the scores, under their
    weights, and one of the result. A key without weight, however large, adds nothing to it."""
    q, k, v = (tensor.double() for tensor in inputs)
    scale = q.shape[-1] ** -0.5
    scores = q @ k.transpose(-1, -2) * scale
    if causal:
        above = torch.ones(scores.shape[-2:], dtype=torch.bool, device="cuda").triu(1)
        scores.masked_fill_(above, -math.inf)
    weights = scores.softmax(-1)
    sizes = q.abs() @ k.abs().transpose(-1, -2) * scale
    largest = (weights @ v).abs().amax(-1)
    reach = v.abs().amax(-1).unsqueeze(-2) + largest.unsqueeze(-1)
    return 2.0**-20 * (weights * sizes * reach).sum(-1) + 1e-5 * largest


@pytest.mark.parametrize("shape", ["2x4x1000x64", "1x4x520x128"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("factor", [1e2, 1e6, 1e15])
@pytest.mark.parametrize("make", UNEVEN, ids=lambda make: make.__name__)
def test_small_rows_beside_large_ones_keep_their_bits(lib, wgmma, make, factor, causal, shape):
    """Row by row, since rows differ by many powers of ten."""
    inputs = compare_cuda.fp32_inputs("normal", shape, seed=5)
    make(*inputs, factor)
    expected = exact(inputs, causal)
    error = (attend(lib, inputs, wgmma, causal).double() - expected).abs().amax(-1)
    limit = rounding_of(inputs, causal)
    assert (error <= limit).all(), (error / limit).max().item()


@pytest.mark.parametrize("factor", [1e-38, 1e-30, 1e-4, 1e4, 1e30])
@pytest.mark.parametrize("which", [0, 1, 2], ids="qkv".__getitem__)
def test_any_scale_of_one_tensor(lib, wgmma, which, factor):
    inputs = compare_cuda.fp32_inputs("normal", "2x4x300x64", seed=6)
    inputs[which].mul_(factor)
    expected = exact(inputs)
    error = (attend(lib, inputs, wgmma).double() - expected).abs().amax(-1)
    assert (error <= rounding_of(inputs, False)).all()


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 3e38], ids=str)
@pytest.mark.parametrize("limits", ["causal", "length", "mask"])
def test_forbidden_keys_do_not_show(lib, wgmma, limits, value):
    q, k, v = compare_cuda.fp32_inputs("normal", "2x4x200x64", seed=8)
    keys = slice(0, 150 if limits == "length" else 200)
    fields = {}
    if limits == "mask":
        mask = torch.ones(1, 1, 1, 200, dtype=torch.bool, device="cuda")
        mask[..., 150:] = False
        fields["mask"] = mask.expand(2, 4, 200, 200)

    def rows():
        inputs = (q, k[:, :, keys], v[:, :, keys])
        return attend(lib, inputs, wgmma, limits == "causal", **fields)[:, :, :150].clone()

    clean = rows()
    k[:, :, 150:] = value
    v[:, :, 150:] = value
    dirty = rows()
    assert dirty.isfinite().all()
    assert (dirty - clean).abs().max().item() <= 1e-5
