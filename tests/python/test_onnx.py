"""Exported to the standard Attention operator, and computed by another runtime."""

import attune
import pytest
import torch

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnx.reference")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

FULL = pytest.mark.full


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


class Full(torch.nn.Module):
    """attune.attention with its keywords."""

    def __init__(self, options):
        super().__init__()
        self.options = options

    def forward(self, q, k, v, mask=None):
        return attune.attention(q, k, v, mask=mask, **self.options)


def qkv(queries=10, keys=10):
    torch.manual_seed(0)
    return torch.randn(2, 4, queries, 8), torch.randn(2, 2, keys, 8), torch.randn(2, 2, keys, 8)


def computed(path, args, reference):
    """What another implementation makes of the exported model."""
    names = [value.name for value in onnx.load(path).graph.input]
    inputs = {name: value.numpy() for name, value in zip(names, args, strict=True)}
    if reference:
        return onnx.reference.ReferenceEvaluator(onnx.load(path)).run(None, inputs)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def agrees(path, args, model, reference=False):
    with torch.no_grad():
        ours = model(*args)
    theirs = computed(path, args, reference)
    for a, b in zip(theirs, ours if isinstance(ours, tuple) else (ours,), strict=True):
        torch.testing.assert_close(torch.from_numpy(a), b, atol=2e-6, rtol=1e-5)


BOTTOM_RIGHT = {"is_causal": True, "causal_alignment": "bottom_right"}
KEEP = torch.ones(10, 10, dtype=torch.bool).tril(4)
LENGTHS = torch.tensor([10, 6], dtype=torch.int32)
OPTIONS = [
    pytest.param({"softcap": 3.0, "window": (2, 1)}, 10, None, id="softcap and window"),
    pytest.param({"softcap": 3.0, "is_causal": True}, 10, None, id="softcap", marks=FULL),
    pytest.param({**BOTTOM_RIGHT, "window": (2, 1)}, 5, None, id="bottom right", marks=FULL),
    pytest.param({"window": 3}, 10, KEEP, id="window and mask", marks=FULL),
    pytest.param({**BOTTOM_RIGHT, "key_lengths": LENGTHS}, 5, None, id="key lengths"),
    pytest.param({"window": 3}, 10, torch.randn(10, 10), id="window and bias", marks=FULL),
]


@pytest.mark.parametrize("options,queries,mask", OPTIONS)
@pytest.mark.parametrize("opset", [23, 25])
def test_softcap_and_windows(tmp_path, options, queries, mask, opset):
    """Opset 25 has windows: onnxruntime does not know them yet, onnx's own evaluator does."""
    from attune.onnx import export

    args = qkv(queries) if mask is None else (*qkv(queries), mask)
    model, path = Full(options).eval(), tmp_path / "model.onnx"
    export(model, args, path, opset_version=opset)
    (node,) = (node for node in onnx.load(path).graph.node if node.op_type == "Attention")
    windows = any(a.name == "left_window_size" and a.i >= 0 for a in node.attribute)
    assert windows == (opset == 25 and "window" in options and "causal_alignment" not in options)
    agrees(path, args, model, reference=windows)


@pytest.mark.parametrize(
    "options,queries,mask",
    [
        *OPTIONS,
        pytest.param({}, 10, None, id="plain", marks=FULL),
        pytest.param({"layout": "bshd", "is_causal": True}, 10, None, id="bshd", marks=FULL),
        pytest.param(
            {"alibi_slopes": torch.rand(4), "sinks": torch.rand(4), "return_lse": True},
            10,
            None,
            id="slopes, sinks and lse",
            marks=FULL,
        ),
    ],
)
def test_plain_torch_export(tmp_path, options, queries, mask):
    args = qkv(queries) if mask is None else (*qkv(queries), mask)
    if options.get("layout") == "bshd":
        args = tuple(t.transpose(1, 2).contiguous() for t in args)
    model, path = Full(options).eval(), tmp_path / "model.onnx"
    torch.onnx.export(model, args, path)
    agrees(path, args, model)


class WithLengths(Full):
    def forward(self, q, k, v, lengths):
        return attune.attention(q, k, v, key_lengths=lengths, **self.options)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("options", [{}, BOTTOM_RIGHT])
def test_lengths_outside_count_as_the_nearer_end(tmp_path, options, plain):
    from attune.onnx import export

    model, path = WithLengths(options).eval(), tmp_path / "model.onnx"
    inside = (*qkv(5), torch.tensor([10, 6], dtype=torch.int32))
    (torch.onnx.export if plain else export)(model, inside, path)
    agrees(path, inside, model)
    agrees(path, (*inside[:3], torch.tensor([13, 6], dtype=torch.int32)), lambda *_: model(*inside))
    if plain or options:  # onnxruntime's operator has a mean where every key is masked
        none = (*inside[:3], torch.tensor([10, 0], dtype=torch.int32))
        below = (*inside[:3], torch.tensor([10, -4], dtype=torch.int32))
        agrees(path, below, lambda *_: model(*none))


@FULL
def test_plain_torch_export_of_a_module(tmp_path):
    model, x = attune.MultiheadSelfAttention(32, 4).eval(), torch.randn(2, 10, 32)
    torch.onnx.export(model, (x,), tmp_path / "module.onnx")
    agrees(tmp_path / "module.onnx", (x,), model)


@FULL
@pytest.mark.parametrize("options,words", [
    ({"sinks": torch.rand(4)}, "no sinks"), ({"return_lse": True}, "no return_lse"),
    ({"dropout_p": 0.5, "dropout_seed": 1}, "no dropout_p"),
])  # fmt: skip
def test_what_the_operator_cannot_say(tmp_path, options, words):
    from attune.onnx import export

    with pytest.raises(Exception) as error:  # noqa: PT011 - torch's, ours is its cause
        export(Full(options).eval(), qkv(), tmp_path / "x.onnx")
    said, causes = error.value, []
    while said is not None:
        causes.append(str(said))
        said = said.__cause__
    assert any(words in cause for cause in causes)
