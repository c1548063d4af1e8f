"""Split products have float32's accuracy, for every finite input."""

import pytest
import torch
from attune.linear import Linear, split_linear

KINDS = {
    "normal": lambda x, w: (x, w),
    "tiny": lambda x, w: (x * 2.0**-60, w * 2.0**-30),
    "subnormal": lambda x, w: (x * 2.0**-130, w * 2.0**100),
    "huge": lambda x, w: (x * 2.0**120, w * 2.0**-110),
    "columns apart": lambda x, w: (x * _powers(-8, 8, 1, 96), w),
    "rows apart": lambda x, w: (x * _powers(-60, 60, 64, 5, 1), w),
    "weight rows apart": lambda x, w: (x, w * _powers(-40, 40, 40, 1)),
    "zeros": lambda x, w: (x * 0, w),
    "never together": lambda x, w: (x * _ends(0) * 2.0**120, w * _ends(1) * 2.0**120),
}


def _powers(low, high, *shape):
    return torch.exp2(torch.randint(low, high, shape).float())


def _ends(which):
    return (torch.arange(96) % 2 == which).float()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_accuracy(kind, bias, device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    torch.manual_seed(0)
    x, weight = KINDS[kind](torch.randn(64, 5, 96), torch.randn(40, 96) / 10)
    offset = torch.randn(40) if bias else None
    exact = x.double() @ weight.double().t() + (0 if offset is None else offset.double())
    size = x.double().abs() @ weight.double().abs().t() + 1e-300
    size += 0 if offset is None else offset.double().abs()
    single = (torch.nn.functional.linear(x, weight, offset).double() - exact).abs() / size
    there = (None if t is None else t.to(device) for t in (x, weight, offset))
    out = split_linear(*there).cpu()
    assert out.shape == (64, 5, 40)
    ours = (out.double() - exact).abs() / size
    assert ours.max() <= 2 * single.max() + 2.0**-21


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_bad_row_is_nan_and_alone(value):
    x, weight = torch.randn(4, 16), torch.randn(8, 16)
    expected = torch.nn.functional.linear(x, weight)
    x[1, 3] = value
    out = split_linear(x, weight)
    assert not out[1].isfinite().any()
    torch.testing.assert_close(out[[0, 2, 3]], expected[[0, 2, 3]], atol=1e-5, rtol=1e-5)


def test_the_layer_is_a_linear_layer():
    layer, plain = Linear(16, 8), torch.nn.Linear(16, 8)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(4, 16)
    assert torch.equal(layer(x), plain(x))
    layer(x).sum().backward()
    assert layer.weight.grad is not None
