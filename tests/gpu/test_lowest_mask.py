"""Masks are often filled with the lowest number of their type: it is finite, so the key counts."""

import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch", reason="./x setup installs torch")
compare_cuda = pytest.importorskip("compare_cuda")
attune_ctypes = compare_cuda.attune_ctypes

MODES = ["naive", "tiled", "fused", "mma", "wgmma"]
TOLERANCE = {"f32": 1e-5, "f16": 5e-3, "bf16": 2e-2}


def inputs_of(dtype):
    generator = torch.Generator("cuda").manual_seed(7)
    return [
        torch.randn(1, 2, 100, 64, generator=generator, device="cuda").to(dtype) for _ in range(3)
    ]


def attend(lib, mode, q, k, v, mask, **fields):
    if mode == "mma" and torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("mma needs compute capability 8.0")
    if mode == "wgmma" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma needs compute capability 9.0")
    out = compare_cuda.poisoned_output(q, v)
    return attune_ctypes.CudaCall(
        lib, q, k, v, out, mode=attune_ctypes.MODES[mode], mask=mask, **fields
    )()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", TOLERANCE)
def test_a_row_full_of_it_has_keys(lib, name, mode):
    dtype = compare_cuda.DTYPES[name]
    q, k, v = inputs_of(dtype)
    lowest = torch.finfo(dtype).min
    mask = torch.zeros(1, 1, 100, 100, dtype=dtype, device="cuda")
    mask[..., 3, :] = lowest
    mask[..., 4, 10:] = lowest
    mask[..., 5, :] = -torch.inf
    mask[..., 5, 70:80] = lowest
    out = attend(lib, mode, q, k, v, mask)
    scores = q.double() @ k.double().transpose(-1, -2) / 8 + mask.double()
    if name != "f16":  # beside it a score of float64 has more digits than one of fp32 can have
        scores[..., 3, :] = lowest
        scores[..., 5, 70:80] = lowest
    expected = scores.softmax(-1) @ v.double()
    error = (out.double() - expected).abs()
    assert (error <= TOLERANCE[name]).all(), error.amax((0, 1, 3))


@pytest.mark.parametrize("mode", MODES)
def test_a_tiny_scale_leaves_the_mask(lib, mode):
    q, k, v = inputs_of(torch.bfloat16)
    mask = torch.zeros(1, 1, 100, 100, dtype=torch.bfloat16, device="cuda")
    mask[..., ::3] = -torch.inf
    out = attend(lib, mode, q, k, v, mask, scale=1e-40)
    expected = mask.double().softmax(-1) @ v.double()
    assert ((out.double() - expected).abs() <= TOLERANCE["bf16"]).all()
