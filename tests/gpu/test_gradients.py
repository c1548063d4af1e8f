"""The backward pass on the GPU through the torch op, beside torch's own gradients in float64; and
under graph capture. Every feature: `attune check --device cuda --pass backward`."""

import pytest

pytestmark = pytest.mark.gpu
torch = pytest.importorskip("torch", reason="./x setup installs torch")
pytest.importorskip("attune")

# Roundings of out, of weights and of the result, of the largest gradient.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def gradients(q, k, v, dout, **options):
    out, lse = torch.ops.attune.attention(q, k, v, want_lse=True, **options)
    found = torch.ops.attune.attention_backward(dout, None, out, lse, q, k, v, **options)
    return found[:3]


def expected(q, k, v, dout, causal):
    wide = [t.double().requires_grad_() for t in (q, k, v)]
    group = q.shape[1] // k.shape[1]
    keys, values = (t.repeat_interleave(group, 1) for t in wide[1:])
    out = torch.nn.functional.scaled_dot_product_attention(wide[0], keys, values, is_causal=causal)
    return torch.autograd.grad(out, wide, dout.double())


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("dim", [40, 64, 128, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_they_are_those_of_torch_in_float64(dtype, dim, causal):
    torch.manual_seed(dim)
    q, dout = (torch.randn(2, 4, 200, dim, device="cuda", dtype=dtype) for _ in range(2))
    k, v = (torch.randn(2, 2, 200, dim, device="cuda", dtype=dtype) for _ in range(2))
    found = gradients(q, k, v, dout, causal=causal)
    again = gradients(q, k, v, dout, causal=causal)
    for got, same, want in zip(found, again, expected(q, k, v, dout, causal), strict=True):
        assert torch.equal(got, same), "the bits do not repeat"
        assert (got.double() - want).abs().max() <= TOLERANCE[dtype] * want.abs().max()


def test_a_captured_call_replays():
    q, k, v, dout = (torch.randn(1, 2, 100, 64, device="cuda") for _ in range(4))
    out, lse = torch.ops.attune.attention(q, k, v, want_lse=True)
    backward = torch.ops.attune.attention_backward
    first = backward(dout, None, out, lse, q, k, v)[:3]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = backward(dout, None, out, lse, q, k, v)[:3]
    dout.mul_(2)  # every step doubles exactly
    graph.replay()
    for got, before in zip(captured, first, strict=True):
        assert torch.equal(got, 2 * before)
