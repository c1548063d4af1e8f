"""fp32 on tensor cores is as good as fp32: beside PyTorch's own, both against float64."""

import math

import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch", reason="./x setup installs torch")
compare_cuda = pytest.importorskip("compare_cuda")
attune_ctypes = compare_cuda.attune_ctypes

SHAPES = ["4x8x1024x64", "2x4x1000x128", "1x4/2x777x96", "2x2x65/400x64"]
LONG = "1x1x16384x64"  # where an accumulator that truncates would show
ROUNDING = 2.0**-24  # of the result itself; PyTorch may be lucky


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
    errors = row["errors"]
    assert errors.keys() >= {"mma", "efficient"}, row["refused"]
    return errors["mma"], 2 * errors["efficient"] + ROUNDING * row["largest"]


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("shape", [*SHAPES, LONG])
@pytest.mark.parametrize("kind", compare_cuda.FP32_INPUTS)
def test_error_is_at_most_twice_pytorchs(lib, kind, shape, causal):
    if shape == LONG and (kind != "normal" or causal):
        pytest.skip("the long shape is for sums of many terms")
    row = compare_cuda.accuracy_row(lib, kind, shape, causal, ("mma",), seed=1)
    error, limit = judge(row)
    print(f"{kind} {shape}: {row['errors']}")
    assert error <= limit, row
    if kind == "normal":
        assert error <= 1e-5, row


def test_a_mean_in_v_shows_no_bias(lib):
    """Sums that all have one sign: truncation would grow with the sequence."""
    q, k, v = compare_cuda.fp32_inputs("normal", LONG, seed=2)
    v += 1.0
    expected = exact((q, k, v))
    bias = ((attend(lib, (q, k, v), "mma").double() - expected) / expected).mean().item()
    assert abs(bias) < 2e-6


def test_auto_takes_tensor_cores_and_strict_does_not(lib):
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("tensor cores for fp32 need compute capability 8.0")
    q, k, v = compare_cuda.fp32_inputs("normal", "2x4x512x64", seed=1)
    out = torch.empty_like(q)
    for strict, mode in ((0, "mma"), (1, "fused")):
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
def test_non_finite_values_are_of_the_kind_of_plain_fp32(lib, name, causal):
    q, k, v = compare_cuda.fp32_inputs("normal", "1x2x200x64", seed=3)
    tensors = {"q": q, "k": k, "v": v}
    for which, row, column, value in SPECIAL[name]:
        tensors[which][:, :, row, column] = value
    ours = attend(lib, (q, k, v), "mma", causal)
    fused = attend(lib, (q, k, v), "fused", causal)
    assert torch.equal(kinds(ours), kinds(fused))

    # PyTorch multiplies weights of 0 with V, so that masked keys leak there: not beside causal.
    if not causal:
        peer = compare_cuda.torch_variant("math", (q, k, v, None), causal)
        with peer.context():
            assert torch.equal(kinds(ours), kinds(peer.run()))

    # Values share the exponent of their tile: beside one of 1e30 they have no digits left, and what
    # is asked for there is only that nothing overflows.
    if "large" in name:
        return
    finite = ours.isfinite()
    expected = fused.double()[finite]
    error = (ours.double()[finite] - expected).abs()
    assert (error <= 2e-5 * (1 + expected.abs())).all()


def test_what_is_not_finite_stays_in_its_rows(lib):
    """A NaN in one query row, and in one column of V."""
    q, k, v = compare_cuda.fp32_inputs("normal", "1x2x200x64", seed=4)
    clean = attend(lib, (q, k, v), "mma").clone()
    q[:, :, 9] = NAN
    v[:, :, 50, 7] = NAN
    out = attend(lib, (q, k, v), "mma")
    touched = torch.zeros_like(out, dtype=torch.bool)
    touched[:, :, 9] = True
    touched[:, :, :, 7] = True
    assert torch.equal(out.isnan(), touched)
    assert (out - clean)[~touched].abs().max().item() < 1e-5
