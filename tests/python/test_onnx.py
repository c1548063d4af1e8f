"""Exported to the standard Attention operator, and computed by another runtime."""

import attune
import pytest
import torch

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


class Block(torch.nn.Module):
    def __init__(self, heads, heads_kv, **options):
        super().__init__()
        self.heads, self.heads_kv, self.options = heads, heads_kv, options

    def forward(self, x, mask=None):
        split = [self.heads, self.heads_kv, self.heads_kv]
        q, k, v = x.split([8 * n for n in split], -1)
        q, k, v = (
            t.unflatten(-1, (n, 8)).transpose(1, 2) for t, n in zip((q, k, v), split, strict=True)
        )
        out = attune.scaled_dot_product_attention(
            q, k, v, mask, enable_gqa=self.heads != self.heads_kv, **self.options
        )
        return out.transpose(1, 2).flatten(2)


@pytest.mark.parametrize(
    "heads,heads_kv,options,masked",
    [
        (2, 2, {}, False),
        (2, 2, {"is_causal": True, "scale": 0.5}, False),
        (4, 2, {"is_causal": True}, False),
        (2, 2, {}, True),
    ],
)
def test_another_runtime_agrees(tmp_path, heads, heads_kv, options, masked):
    from attune.onnx import export

    torch.manual_seed(0)
    args = [torch.randn(2, 10, 8 * (heads + 2 * heads_kv))]
    if masked:
        args.append(torch.rand(10, 10) < 0.7)
        args[1][:, 0] = True
    model = Block(heads, heads_kv, **options).eval()
    path = tmp_path / "block.onnx"
    export(model, tuple(args), path)
    kinds = [node.op_type for node in onnx.load(path).graph.node]
    assert kinds.count("Attention") == 1 and "Softmax" not in kinds
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    inputs = {name: value.numpy() for name, value in zip(names, args, strict=True)}
    (theirs,) = session.run(None, inputs)
    torch.testing.assert_close(torch.from_numpy(theirs), model(*args), atol=2e-6, rtol=1e-5)


def test_a_module_with_weights(tmp_path):
    from attune.onnx import export

    model = attune.MultiheadSelfAttention(32, 4).eval()
    x = torch.randn(2, 10, 32)
    export(model, (x,), tmp_path / "module.onnx")
    session = onnxruntime.InferenceSession(
        tmp_path / "module.onnx", providers=["CPUExecutionProvider"]
    )
    (theirs,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(theirs), model(x), atol=2e-6, rtol=1e-5)


def test_an_old_opset_is_refused(tmp_path):
    from attune.onnx import export

    with pytest.raises(ValueError, match="opset 23"):
        export(Block(2, 2), (torch.randn(1, 4, 48),), tmp_path / "x.onnx", opset_version=18)
