"""Hopper's rung where it takes short cuts: rows that keep their first maximum, tiles that a block
mask leaves out, heads that share a tile. Beside float64; its error beside cuDNN's."""

import math

import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch", reason="./x setup installs torch")
compare_cuda = pytest.importorskip("compare_cuda")
attune_ctypes = compare_cuda.attune_ctypes


@pytest.fixture(autouse=True)
def hopper(device):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma needs compute capability 9.0")


def make_inputs(shape, dtype, seed=1):
    batch, heads, heads_kv, seq_q, seq_k, dim, dim_v = attune_ctypes.parse_shape(shape)
    generator = torch.Generator("cuda").manual_seed(seed)

    def values(*size):
        random = torch.randn(*size, generator=generator, device="cuda")
        return random.to(compare_cuda.DTYPES[dtype])

    return (
        values(batch, heads, seq_q, dim),
        values(batch, heads_kv, seq_k, dim),
        values(batch, heads_kv, seq_k, dim_v),
    )


def attend(lib, inputs, causal=False, **fields):
    q, k, v = inputs
    call = attune_ctypes.CudaCall(
        lib,
        q,
        k,
        v,
        compare_cuda.poisoned_output(q, v),
        mode=attune_ctypes.MODES["wgmma"],
        causal=int(causal),
        alignment=attune_ctypes.ALIGNMENTS["top_left"],
        **fields,
    )
    return call(), lib.explain(call.args)["chosen"]


def check(lib, inputs, dtype, causal=False, allowed=None, **fields):
    """The kernel that ran. allowed: what a row may look at, [B, H, Sq, Sk]."""
    out, kernel = attend(lib, inputs, causal, **fields)
    rows = torch.arange(inputs[0].shape[2], device="cuda")
    mask = None
    if allowed is not None:
        mask = torch.zeros(allowed.shape, device="cuda").masked_fill_(~allowed, -math.inf)
    expected = compare_cuda.float64_rows((*inputs, mask), causal, rows).nan_to_num(0.0)
    assert compare_cuda.compare(out, expected, dtype)[1] == "", kernel
    return kernel


# Scores in natural units, by the key's distance from the last one: what a row meets on its way.
PROFILES = {
    "slowly up": lambda n: n * 0.2,
    "up by a tile's worth": lambda n: n // 64 * 40.0,
    "one step of 50": lambda n: 50.0 * (n >= 300),
    "one step of 80": lambda n: 80.0 * (n >= 300),
    "one step of 200": lambda n: 200.0 * (n >= 300),
    "one step of 5000": lambda n: 5000.0 * (n >= 300),
    "far down": lambda n: n * -3.0,
    "up and down": lambda n: 150.0 * torch.sin(n / 50),
    "one key": lambda n: 300.0 * (n == 700),
}


@pytest.mark.parametrize("limit", ["full", "causal", "window"])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("shape", ["2x40x1100x64", "2x40x900x128"])
@pytest.mark.parametrize("profile", PROFILES)
def test_maxima_that_grow(lib, profile, shape, dtype, limit):
    """Every third row has the profile, so that those beside it must not suffer; the grid is large
    enough for blocks that go from tile to tile."""
    q, k, v = make_inputs(shape, dtype)
    dim, keys = q.shape[3], k.shape[2]
    q[..., 0] = 0
    q[:, :, ::3, 0] = 16
    from_last = torch.arange(keys - 1, -1, -1, device="cuda", dtype=torch.float32)
    k[..., 0] = (PROFILES[profile](from_last) * math.sqrt(dim) / 16).to(k.dtype)
    if limit == "window":
        kernel = check(lib, (q, k, v), dtype, True, within(q, k, 700), window_left=700)
    else:
        kernel = check(lib, (q, k, v), dtype, limit == "causal")
    assert "mx2" in kernel, "the test is about kernels without new maxima"


def within(q, k, left=None, right=None):
    """What a window leaves, [1, 1, Sq, Sk]."""
    rows = torch.arange(q.shape[2], device="cuda")[:, None]
    ahead = torch.arange(k.shape[2], device="cuda") - rows
    allowed = torch.ones_like(ahead, dtype=torch.bool)
    if left is not None:
        allowed &= ahead >= -left
    if right is not None:
        allowed &= ahead <= right
    return allowed.expand(q.shape[0], 1, -1, -1)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(
    ("left", "right"),
    [(0, 0), (8, 8), (None, 70), (100, None), (300, 5), (64, 64), (1023, None), (5000, 200)],
)
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        *[("2x40x1300x64", "bf16"), ("2x40x1300x64", "f16"), ("2x40x700/1500x128", "bf16")],
        *[("1x30x1100x96", "bf16"), ("1x20x1100x256", "bf16"), ("2x40x1300x64", "f32")],
    ],
)
def test_windows(lib, shape, dtype, left, right, causal):
    """Tiles at either side that some warpgroups look at and others pass over."""
    q, k, v = make_inputs(shape, dtype)
    sides = {"window_left": left, "window_right": right}
    fields = {side: keys for side, keys in sides.items() if keys is not None}
    check(lib, (q, k, v), dtype, causal, within(q, k, left, right), **fields)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_stays_in_its_rows(lib, value):
    q, k, v = make_inputs("2x40x1100x64", "bf16")
    q[1, 3, 500, 7] = value
    out, kernel = attend(lib, (q, k, v))
    assert "mx2" in kernel
    assert out[1, 3, 500].isnan().all()
    out[1, 3, 500] = 0
    assert out.isfinite().all()


def block_mask(shape, cells, share, seed=1):
    """A random mask of cells, with rows of cells that see nothing, and what it allows."""
    batch, heads, _, seq_q, seq_k, _, _ = attune_ctypes.parse_shape(shape)
    rows, columns = -(-seq_q // cells[0]), -(-seq_k // cells[1])
    generator = torch.Generator("cuda").manual_seed(seed)
    mask = torch.rand(batch, heads, rows, columns, generator=generator, device="cuda") < share
    mask[0, 0, rows // 2] = False
    whole = mask.repeat_interleave(cells[0], 2).repeat_interleave(cells[1], 3)
    return mask, whole[:, :, :seq_q, :seq_k]


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("cells", [(128, 128), (64, 64), (48, 100), (16, 33), (1, 1)])
@pytest.mark.parametrize("shape", ["2x40x700x64", "1x6x1000x128", "2x8/2x300x64"])
def test_block_masks(lib, shape, cells, causal):
    for share in (0.1, 0.9):
        inputs = make_inputs(shape, "bf16")
        mask, allowed = block_mask(shape, cells, share)
        fields = {"block_mask": mask, "block_mask_q": cells[0], "block_mask_k": cells[1]}
        check(lib, inputs, "bf16", causal, allowed, **fields)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(
    "shape", ["3x32/8x16/1000x128", "2x8/4x63x64", "4x64/1x5/300x64", "9x16/8x33/700x256"]
)
def test_heads_that_share_a_tile(lib, shape, causal):
    inputs = make_inputs(shape, "f16")
    kernel = check(lib, inputs, "f16", causal)
    assert "pg1" in kernel, "the test is about packed heads"


def cudnns(inputs, causal):
    variant = compare_cuda.torch_variant("cudnn", (*inputs, None), causal)
    if variant.run is None:
        pytest.skip(f"cuDNN: {variant.refused}")
    with variant.context():
        return variant.run()


def rms(error):
    return error.square().mean().sqrt().item()


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("kind", ["normal", "peaked", "growing"])
@pytest.mark.parametrize(
    "shape, dtype",
    [
        *[("2x32x2048x64", "f16"), ("2x32x2048x64", "bf16"), ("8x32x512x64", "bf16")],
        *[("2x16x2048x128", "bf16"), ("2x16x2048x128", "f16"), ("2x8x2048x256", "bf16")],
    ],
)
def test_error_beside_cudnns(lib, shape, dtype, kind, causal):
    """No more than 1.2 times cuDNN's own: the root of the mean square, and the largest (with one
    rounding of the result to spare: which of two neighbours it hits is luck)."""
    q, k, v = make_inputs(shape, dtype)
    if kind == "peaked":
        q *= 4
    if kind == "growing":  # from the last key to the first, and from the first to the last
        keys = torch.linspace(-1, 1, k.shape[2], device="cuda")[None, None, :, None]
        k += (q[:, :, :1] * keys * 0.5).to(k.dtype)
    hold_beside_cudnns(lib, (q, k, v), dtype, causal)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("dim", [64, 128])
def test_error_of_long_rows_that_are_nearly_even(lib, dim, causal):
    """So many weights of one size that their sum alone is large: no reason to lose their bits."""
    q, k, v = make_inputs(f"1x4x16384x{dim}", "f16")
    q *= 0.5
    hold_beside_cudnns(lib, (q, k, v), "f16", causal)


def hold_beside_cudnns(lib, inputs, dtype, causal):
    rows = torch.arange(0, inputs[0].shape[2], 7, device="cuda")
    expected = compare_cuda.float64_rows((*inputs, None), causal, rows)
    ours = (attend(lib, inputs, causal)[0][:, :, rows].double() - expected).abs()
    theirs = (cudnns(inputs, causal)[:, :, rows].double() - expected).abs()
    rounding = {"f16": 2.0**-11, "bf16": 2.0**-8}[dtype] * expected.abs().max()
    print(f"{tuple(inputs[0].shape)} {dtype}: rms {rms(ours):.3e} of {rms(theirs):.3e}")
    assert rms(ours) <= 1.2 * rms(theirs)
    assert ours.max() <= 1.2 * theirs.max() + rounding


def test_lse_of_long_rows(lib):
    """Scores by the element are summed with maxima that may grow in each of 1024 tiles; where they
    do not, nothing may shrink by the rounding of a maximum."""
    q, k, v = make_inputs("1x4x64/65536x64", "bf16")
    slopes = torch.tensor([0.0, 1e-4, 0.01, 0.2], device="cuda")
    lse = torch.full((1, 4, 64), math.nan, device="cuda")
    _, kernel = attend(lib, (q, k, v), lse=lse, alibi_slopes=slopes)
    assert "mx0" in kernel, "the test is about kernels that shrink in each tile"
    far = (torch.arange(64, device="cuda")[:, None] - torch.arange(65536, device="cuda")).abs()
    scores = q[0].double() @ k[0].double().transpose(1, 2) / 8
    expected = torch.logsumexp(scores - slopes.double()[:, None, None] * far, dim=-1)
    assert (lse[0].double() - expected).abs().max() <= 1e-5
