"""What torch must know of the ops: fake shapes, compilation, export, autocast, gradients."""

import os
import subprocess
import sys

import attune
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as torch_sdpa


def qkv(*shape, dtype=torch.float32):
    torch.manual_seed(0)
    return torch.randn(3, *shape).to(dtype).unbind(0)


def samples():
    attune.info()  # loads the ops
    q, k, v = qkv(2, 4, 9, 16)
    mask = torch.rand(9, 9) < 0.5
    sdpa, attention = torch.ops.attune.sdpa.default, torch.ops.attune.attention.default
    full = {"causal": True, "alignment": 1}
    yield sdpa, (q, k, v, None, True, 0.0, False), {}
    yield sdpa, (q, k, v, mask, False, 0.5, True), {}
    for layout in (0, 1):
        for lse in (False, True):
            rest = {"layout": layout, "want_lse": lse, **({"mask": mask} if layout == 0 else {})}
            yield attention, (q, k, v), {**full, **rest}
    lengths = torch.tensor([3, 9], dtype=torch.int32)
    yield attention, (q, k, v), {**full, "key_lengths": lengths, "want_lse": True}
    drawn = torch.tensor([7])
    dropped = {**full, "want_lse": True, "dropout_p": 0.5}
    yield torch.ops.attune.attention_random.default, (q, k, v, drawn), dropped
    # With heads and rows in the other order of memory, and with columns that are neighbours.
    q = q.transpose(1, 2).contiguous().transpose(1, 2)
    yield sdpa, (q, k, v, None, True, 0.0, False), {}
    yield attention, (q, k, v), {**full, "want_lse": True}
    q = q.permute(3, 0, 2, 1).contiguous().permute(1, 3, 2, 0)
    yield sdpa, (q, k, v, None, True, 0.0, False), {}


@pytest.mark.parametrize("n", range(11))
def test_opcheck(n):
    op, args, keywords = list(samples())[n]
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(op, args, keywords, test_utils=tests)


def test_every_option_of_the_op_has_a_default_and_graphs_leave_it_out():
    attune.info()
    schema = torch.ops.attune.attention.default._schema
    assert [a.name for a in schema.arguments[:3]] == ["q", "k", "v"]
    assert all(a.has_default_value() for a in schema.arguments[3:])
    assert all(a.kwarg_only == ("Tensor" not in str(a.type)) for a in schema.arguments[3:])
    explained = torch.ops.attune.explain_attention.default._schema
    assert (
        str(explained).split("(", 1)[1].rsplit(" -> ")[0]
        == (str(schema).split("(", 1)[1].rsplit(" -> ")[0])
    )
    graph = torch.fx.experimental.proxy_tensor.make_fx(
        lambda q, k, v: attune.attention(q, k, v, softcap=20.0)
    )(*qkv(1, 2, 5, 8))
    (call,) = (node for node in graph.graph.nodes if "attention" in str(node.target))
    assert dict(call.kwargs) == {"softcap": 20.0}


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_in_one_graph(dynamic):
    def block(q, k, v):
        out = attune.scaled_dot_product_attention(q * 2, k, v, is_causal=True)
        other, lse = attune.attention(q, k, v, window=(4, 0), softcap=20.0, return_lse=True)
        return out + other, lse

    compiled = torch.compile(block, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for length in (9, 12):
        q, k, v = qkv(2, 4, length, 16)
        for ours, expected in zip(compiled(q, k, v), block(q, k, v), strict=True):
            torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_with_key_lengths(dynamic):
    def block(q, k, v, lengths):
        out, lse = attune.attention(
            q * 2, k, v, key_lengths=lengths, is_causal=True, causal_alignment="bottom_right",
            return_lse=True,
        )  # fmt: skip
        cache = attune.flash_attn_with_kvcache(
            *(t.transpose(1, 2) for t in (q, k, v)), cache_seqlens=lengths, causal=True
        )
        return out + cache.transpose(1, 2), lse

    compiled = torch.compile(block, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for length, lengths in ((9, [3, 9]), (12, [0, 7])):
        args = (*qkv(2, 4, length, 16), torch.tensor(lengths, dtype=torch.int32))
        for ours, expected in zip(compiled(*args), block(*args), strict=True):
            torch.testing.assert_close(ours, expected)


def test_export():
    class Block(torch.nn.Module):
        def forward(self, q, k, v):
            return attune.scaled_dot_product_attention(q, k, v, is_causal=True)

    args = qkv(2, 4, 9, 16)
    program = torch.export.export(Block(), args)
    assert "attune.sdpa" in program.graph_module.code
    torch.testing.assert_close(program.module()(*args), Block()(*args))


def test_autocast():
    q, k, v = qkv(1, 2, 9, 16)
    with torch.autocast("cpu", torch.bfloat16):
        out = attune.scaled_dot_product_attention(q, k, v)
        assert out.dtype == torch_sdpa(q, k, v).dtype == torch.bfloat16
        assert attune.attention(q, k, v).dtype == torch.bfloat16


RECORDED = {
    "plain": {},
    "causal": dict(is_causal=True, scale=0.3),
    "bottom right": dict(is_causal=True, causal_alignment="bottom_right"),
    "mask": dict(mask=torch.rand(9, 12, generator=torch.Generator().manual_seed(1)) < 0.5),
    "mask and causal": dict(mask=torch.zeros(9, 12), is_causal=True, causal_alignment="top_left"),
    "window": dict(window=(3, 1), causal_alignment="top_left"),
    "slopes": dict(alibi_slopes=torch.tensor([0.1, 0.2, 0.3, 0.4]), causal_alignment="top_left"),
    "softcap": dict(softcap=3.0, is_causal=True, causal_alignment="bottom_right"),
    "sinks": dict(sinks=torch.tensor([0.1, -0.2, 0.3, 0.4]), window=2, causal_alignment="top_left"),
    "lse": dict(return_lse=True, mask=torch.zeros(9, 12)),
    "mode": dict(mode="fused"),
    "key lengths": dict(key_lengths=torch.tensor([0, 7], dtype=torch.int32)),
    "key lengths and causal": dict(
        key_lengths=torch.tensor([12, 7], dtype=torch.int32),
        is_causal=True,
        causal_alignment="bottom_right",
        window=(3, None),
    ),
    "key lengths, slopes and softcap": dict(
        key_lengths=torch.tensor([5, 11], dtype=torch.int32),
        alibi_slopes=torch.tensor([0.1, 0.2, 0.3, 0.4]),
        causal_alignment="bottom_right",
        softcap=3.0,
        mask=torch.rand(9, 12, generator=torch.Generator().manual_seed(1)) < 0.5,
    ),
}


@pytest.fixture
def warned(monkeypatch):
    monkeypatch.setattr(attune._fallback, "_warned", True)


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_recorded_calls_of_ours_and_of_torchs(name, layout, warned):
    """The same numbers, and gradients, by our kernels and by torch's functions."""
    torch.manual_seed(0)
    options = {**RECORDED[name], "layout": layout}
    keys = 9 if name == "causal" else 12
    q, k, v = torch.randn(2, 4, 9, 16), torch.randn(2, 2, keys, 16), torch.randn(2, 2, keys, 16)
    if layout == "bshd":
        q, k, v = (t.transpose(1, 2).contiguous() for t in (q, k, v))
    expected = attune.attention(q, k, v, **options)
    gradients = []
    for by_torch in (False, True):
        inputs = [t.clone().requires_grad_() for t in (q, k, v)]
        if by_torch:
            result = attune._fallback.attention(*inputs, attune._arguments.Options(**options), "")
        else:
            result = attune.attention(*inputs, **options)
        torch.testing.assert_close(result, expected, atol=3e-6, rtol=1e-5)
        out = result[0] if options.get("return_lse") else result
        out.square().sum().backward()
        gradients.append([t.grad for t in inputs])
        assert all(t.grad.abs().sum() > 0 for t in inputs)
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_what_stands_past_the_key_lengths_has_no_part(warned):
    q, k, v = qkv(2, 2, 9, 16)
    lengths = torch.tensor([4, 9], dtype=torch.int32)
    expected = attune.attention(q, k, v, key_lengths=lengths)
    k, v = k.clone(), v.clone()
    k[0, :, 4:] = v[0, :, 4:] = torch.nan
    assert torch.equal(attune.attention(q, k, v, key_lengths=lengths), expected)
    here, elsewhere = attune._torch.attention, lambda *t: attune._fallback.attention(*t, "")
    for function, more in ((here, {}), (elsewhere, {}), (elsewhere, {"softcap": 1e6})):
        inputs = [t.clone().requires_grad_() for t in (q, k, v)]
        out = function(*inputs, attune._arguments.Options(key_lengths=lengths, **more))
        torch.testing.assert_close(out, expected, atol=3e-6, rtol=1e-5)
        out.square().sum().backward()
        assert all(t.grad.isfinite().all() for t in inputs)
        assert inputs[1].grad[0, :, 4:].abs().max() == inputs[2].grad[0, :, 4:].abs().max() == 0


def recorded(q, k, v, lengths, **options):
    lengths = torch.tensor(lengths, dtype=torch.int32, device=q.device)
    q = q.detach().requires_grad_()
    return attune.attention(q, k, v, key_lengths=lengths, **options)


BOTTOM_RIGHT = {"is_causal": True, "causal_alignment": "bottom_right"}


@pytest.mark.parametrize("options", [{}, BOTTOM_RIGHT, {"softcap": 3.0}, {"layout": "bshd"}])
@pytest.mark.parametrize("lengths", [[9, 2], [3, -1], [3], [3, 2, 1], [[3, 2]], 3])
def test_recorded_key_lengths_are_refused_in_the_librarys_words(options, lengths, warned):
    q, k, v = torch.randn(2, 3, 3, 8), *torch.randn(2, 2, 3, 3, 8)
    words = []
    for call in (recorded, torch.no_grad()(recorded)):
        with pytest.raises(attune.InvalidArgument, match="key_lengths") as raised:
            call(q, k, v, lengths, **options)
        words.append(str(raised.value))
    assert words[0] == words[1]


@pytest.mark.parametrize("options", [{}, {"softcap": 3.0}])
@pytest.mark.parametrize("dynamic", [False, True])
def test_recorded_key_lengths_in_a_compiled_function(options, dynamic, warned):
    q, k, v = torch.randn(2, 4, 5, 8), *torch.randn(2, 2, 2, 3, 8)
    block = lambda *t: attune.attention(*t[:3], key_lengths=t[3], **BOTTOM_RIGHT, **options)  # noqa: E731
    compiled = torch.compile(block, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    inside, outside = (torch.tensor([n, 2], dtype=torch.int32) for n in (3, 9))
    q.requires_grad_()
    torch.testing.assert_close(compiled(q, k, v, inside), block(q, k, v, inside))
    with pytest.raises(RuntimeError, match=r"key_lengths\[0\] is 9, but k.shape\[2\] is 3"):
        compiled(q, k, v, outside)


@pytest.mark.parametrize("options", [{}, {"softcap": 3.0}])
def test_recorded_key_lengths_that_nobody_can_read_are_clamped(options, warned):
    """As on a GPU: here mapped by vmap."""
    q, k, v = torch.randn(2, 4, 5, 8), *torch.randn(2, 2, 4, 3, 8)
    gradient = torch.func.grad(
        lambda q, lengths: (
            attune.attention(q, k, v, key_lengths=lengths, **BOTTOM_RIGHT, **options).square().sum()
        )
    )
    outside, inside = (torch.tensor(n, dtype=torch.int32) for n in ([[9, 2]], [[3, 2]]))
    mapped = torch.func.vmap(gradient)(q[None], outside)
    torch.testing.assert_close(mapped[0], gradient(q, inside[0]))
    assert recorded(*(t.to("meta") for t in (q, k, v)), [9, 2], **options).shape == q.shape


@pytest.mark.parametrize("options", [{}, {"softcap": 3.0}, {"return_lse": True}])
@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_recorded_scale_is_refused_as_without_gradients(options, scale, warned):
    q, k, v = qkv(1, 2, 5, 8)
    for recording in (False, True):
        with pytest.raises(ValueError, match="scale is .*; it must be positive"):
            attune.attention(q.detach().requires_grad_(recording), k, v, scale=scale, **options)


def test_a_recorded_row_without_keys(warned):
    q, k, v = (t.requires_grad_() for t in qkv(1, 2, 9, 16))
    mask = torch.ones(9, 9, dtype=torch.bool).tril(-1)
    for options in ({}, {"softcap": 3.0}):
        out = attune.attention(q, k, v, mask=mask, **options)
        assert out[..., 0, :].abs().max() == 0
        out.sum().backward()
        assert all(t.grad.isfinite().all() for t in (q, k, v))


def test_recorded_calls_of_torchs_function(warned):
    q, k, v = qkv(1, 2, 9, 16)
    mask = torch.randn(9, 9)
    for args in ((None, 0.0, True), (mask, 0.0, False, 0.3), (mask, 0.0, True)):
        expected = attune.scaled_dot_product_attention(q, k, v, *args)
        for n in range(3):
            inputs = [t.clone().requires_grad_(i == n) for i, t in enumerate((q, k, v))]
            out = attune.scaled_dot_product_attention(*inputs, *args)
            torch.testing.assert_close(out, expected, atol=3e-6, rtol=1e-5)
            out.sum().backward()
            assert inputs[n].grad is not None
            with torch.no_grad():
                again = attune.scaled_dot_product_attention(*inputs, *args)
            assert torch.equal(again, expected)


@pytest.fixture
def without_backward(monkeypatch):
    """As on a GPU."""
    monkeypatch.setattr(attune._gradients, "why_not", lambda *t, **more: "for the test's tensors")
    monkeypatch.setattr(attune._fallback, "_warned", False)


def test_the_warning_comes_once(without_backward):
    q, k, v = (t.requires_grad_() for t in qkv(1, 2, 9, 16))
    with pytest.warns(UserWarning, match="no backward pass for the test's tensors") as said:
        attune.attention(q, k, v)
        attune.scaled_dot_product_attention(q, k, v).sum().backward()
        with attune.sdpa() as routed:
            torch_sdpa(q, k, v)
    assert len(said) == 1 and "for the test's tensors" in routed.report()
    assert q.grad.abs().sum() > 0


@pytest.mark.parametrize(
    "options",
    [
        dict(dropout_p=0.5, dropout_seed=3),
        dict(mode="reference"),
        dict(batch_invariant=True),
        dict(block_mask=torch.ones(1, 1, 1, 2, dtype=torch.bool)),
        dict(score_mod="return score;"),
    ],
)
def test_what_torch_cannot_compute_is_refused(options, without_backward):
    q, k, v = qkv(1, 2, 9, 16)
    with pytest.raises(NotImplementedError, match="no backward pass.*torch has no"):
        attune.attention(q.requires_grad_(), k, v, **options)
    ends = torch.tensor([0, 9], dtype=torch.int32)
    with pytest.raises(NotImplementedError, match="ragged"):
        attune.flash_attn_varlen_func(*(t[0].transpose(0, 1) for t in (q, k, v)), ends, ends, 9, 9)


def test_user_code_is_refused_as_without_gradients():
    q, k, v = (t.requires_grad_() for t in qkv(1, 2, 9, 16))
    with pytest.raises(attune.Unsupported, match="score_mod"):
        attune.attention(q, k, v, score_mod="return score;")


def test_meta_tensors_have_shapes():
    q, k, v = (t.to("meta") for t in qkv(2, 4, 9, 16))
    out, lse = attune.attention(q, k, v, layout="bshd", return_lse=True)
    assert out.shape == (2, 4, 9, 16) and lse.shape == (2, 9, 4)


def test_many_threads_at_once():
    from concurrent.futures import ThreadPoolExecutor

    q, k, v = qkv(2, 4, 64, 32)
    expected = attune.scaled_dot_product_attention(q, k, v)
    with ThreadPoolExecutor(4) as pool:
        results = pool.map(lambda _: attune.scaled_dot_product_attention(q, k, v), range(40))
        assert all(torch.equal(out, expected) for out in results)


def test_explain_takes_tensors():
    q, k, v = qkv(2, 4, 9, 16)
    said = attune.explain(q, k, v, is_causal=True, layout="bshd")
    assert any(c["chosen"] for c in said["candidates"])


@pytest.mark.parametrize("dims", [(0, 0, 0), (1, 0, None), (None, 2, 1)])
@pytest.mark.parametrize("mask", ["none", "shared", "mapped"])
def test_vmap(dims, mask):
    torch.manual_seed(0)
    parts = [torch.randn(3, 2, 4, 9, 16) for _ in range(3)]
    inputs = [
        t[0] if dim is None else t.movedim(0, dim) for t, dim in zip(parts, dims, strict=True)
    ]
    masks = torch.randn(3, 2, 1, 9, 9)
    attn_mask, mask_dim = {"none": (None, None), "shared": (masks[0], None), "mapped": (masks, 0)}[
        mask
    ]
    ours = torch.func.vmap(attune.scaled_dot_product_attention, in_dims=(*dims, mask_dim))(
        *inputs, attn_mask
    )
    expected = torch.func.vmap(torch_sdpa, in_dims=(*dims, mask_dim))(*inputs, attn_mask)
    torch.testing.assert_close(ours, expected, atol=3e-6, rtol=1e-5)


def test_nested_vmap():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, 2, 4, 9, 16)
    mask = torch.randn(3, 9, 9)
    for call, dims in (
        (attune.scaled_dot_product_attention, (0, 0, 0)),
        (attune.scaled_dot_product_attention, (0, None, 0)),
        (lambda *t: attune.scaled_dot_product_attention(*t, is_causal=True), (0, 0, 0)),
    ):
        outer = (1, 0, 2)
        inputs = [t.movedim(0, dim) for t, dim in zip((q, k, v), outer, strict=True)]
        inputs = [t if d is not None else t.select(1, 0) for t, d in zip(inputs, dims, strict=True)]
        nested = torch.func.vmap(torch.func.vmap(call, in_dims=dims), in_dims=outer)
        rows = []
        for n in range(2):
            some = [t.select(dim, n) for t, dim in zip(inputs, outer, strict=True)]
            parts = [
                call(*(t[m] if d is not None else t for t, d in zip(some, dims, strict=True)))
                for m in range(3)
            ]
            rows.append(torch.stack(parts))
        torch.testing.assert_close(nested(*inputs), torch.stack(rows))
    both = torch.func.vmap(
        torch.func.vmap(attune.scaled_dot_product_attention, in_dims=(0, 0, 0, None)),
        in_dims=(1, 1, 1, 0),
    )
    expected = torch.stack([torch_sdpa(q[:, n], k[:, n], v[:, n], mask[n]) for n in range(3)])
    torch.testing.assert_close(both(q, k, v, mask), expected, atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize("dims", [(-1, 0, 1), (2, -2, None), (0, None, None)])
def test_vmap_over_any_dimension(dims):
    torch.manual_seed(0)
    parts = [torch.randn(3, 2, 4, 9, 16) for _ in range(3)]
    inputs = [
        t[0] if dim is None else t.movedim(0, dim) for t, dim in zip(parts, dims, strict=True)
    ]
    call = attune.scaled_dot_product_attention
    out = torch.func.vmap(call, in_dims=dims, out_dims=1)(*inputs)
    for n in range(3):
        one = (t[0] if dim is None else t[n] for t, dim in zip(parts, dims, strict=True))
        torch.testing.assert_close(out[:, n], call(*one))


def test_vmap_of_a_single_batch_and_of_matrices():
    torch.manual_seed(0)
    q, (k, v) = torch.randn(3, 1, 4, 9, 16), torch.randn(2, 3, 2, 4, 9, 16)
    call = attune.scaled_dot_product_attention
    expected = torch.stack([call(*one) for one in zip(q, k, v, strict=True)])
    torch.testing.assert_close(torch.func.vmap(call)(q, k, v), expected)
    q, k, v = torch.randn(3, 5, 9, 16)
    torch.testing.assert_close(torch.func.vmap(call)(q, k, v), call(q[None], k[None], v[None])[0])
    torch.testing.assert_close(
        torch.func.vmap(lambda *t: attune.attention(*t, layout="bshd", is_causal=True))(
            *qkv(3, 2, 9, 4, 16)
        ),
        torch.stack(
            [
                attune.attention(*one, layout="bshd", is_causal=True)
                for one in zip(*qkv(3, 2, 9, 4, 16), strict=True)
            ]
        ),
    )


def test_vmap_of_the_rest_is_refused():
    q, k, v = qkv(3, 2, 4, 9, 16)
    with pytest.raises(NotImplementedError, match="vmap"):
        torch.func.vmap(lambda *t: attune.attention(*t, softcap=5.0))(q, k, v)


def test_forward_mode_is_torchs(warned):
    q, k, v = qkv(2, 4, 9, 16)
    ones = torch.ones_like(q)
    with sdpa_kernel(SDPBackend.MATH):
        expected = torch.func.jvp(lambda x: torch_sdpa(x, k, v, is_causal=True), (q,), (ones,))
    for call in (attune.scaled_dot_product_attention, attune.attention):
        for recorded in (True, False):
            with torch.set_grad_enabled(recorded):
                out = torch.func.jvp(
                    lambda x, call=call: call(x, k, v, is_causal=True), (q,), (ones,)
                )
            torch.testing.assert_close(out, expected, atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize("options", [{}, {"softcap": 5.0}])
def test_saved_programs(options, tmp_path):
    class Block(torch.nn.Module):
        def forward(self, q, k, v):
            return attune.attention(q, k, v, **options)

    q, k, v = qkv(2, 4, 9, 16)
    program = torch.export.export(Block(), (q, k, v))
    torch.export.save(program, tmp_path / "block.pt2")
    code = f"import torch, attune; torch.export.load({str(tmp_path / 'block.pt2')!r})"
    environment = {**os.environ, "PYTHONPATH": attune.__path__[0] + "/.."}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_the_ops_check_their_numbers():
    q, k, v = qkv(1, 2, 5, 8)
    for alignment, layout in ((3, 0), (2**32 + 1, 0), (1, 7), (1, -1)):
        with pytest.raises(RuntimeError, match="alignment|layout"):
            torch.ops.attune.sdpa_nograd(q, k, v, None, False, 0.0, False, alignment, layout)
    with pytest.raises(RuntimeError, match="dimension"):
        attune.attention(q, k, v[..., :0], return_lse=True)
    big = attune.attention(q, k, v, dropout_p=0.5, dropout_seed=2**63 + 5)
    assert big.isfinite().all()


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_outputs_lie_as_the_queries_do(layout):
    """So that merging the heads needs no copy."""
    q, k, v = qkv(2, 9, 4, 16)
    for swapped in (False, True):
        if swapped:
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        for options in ({}, {"softcap": 5.0}):
            out = attune.attention(q, k, v, layout=layout, **options)
            assert out.stride() == q.stride()
            dense = attune.attention(q.contiguous(), k, v, layout=layout, **options)
            assert dense.is_contiguous() and torch.equal(out, dense)
        meta = attune.attention(*(t.to("meta") for t in (q, k, v)), layout=layout)
        assert meta.stride() == q.stride()
    out = attune.scaled_dot_product_attention(q, k, v)  # [B,S,H,D] seen as [B,H,S,D]
    assert out.stride() == torch_sdpa(q, k, v).stride()
    merged = out.transpose(1, 2).reshape(2, 9, 64)
    assert merged.data_ptr() == out.data_ptr()
    columns = q.permute(3, 0, 2, 1).contiguous().permute(1, 3, 2, 0)
    assert torch.equal(attune.scaled_dot_product_attention(columns, k, v), out)


def test_out_of_memory_has_its_exception():
    huge = torch.randn(1, 1, 1, 8).expand(2**20, 2**10, 2**10, 8)  # the output: 32 TiB
    for call in (
        attune.scaled_dot_product_attention,
        attune.attention,
        lambda *t: attune.attention(*t, softcap=5.0),
    ):
        with pytest.raises(attune.OutOfMemory, match="memory") as raised:
            call(huge, huge, huge)
        assert isinstance(raised.value, MemoryError)
        assert isinstance(raised.value, torch.OutOfMemoryError)


def test_scratch_that_cannot_be_had():
    code = """
import resource, torch, attune
torch.set_num_threads(1)
q, k, v = torch.randn(3, 1, 1, 4096, 256)
q = q[:, :, :64]  # a small output: what cannot be had is the library's
attune.scaled_dot_product_attention(q[:, :, :8], k[:, :, :8], v[:, :, :8])
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
hog, spare = [], bytearray(2**17)
for size in (2**24, 2**20, 2**18, 2**17):  # what the process has left over
    try:
        while True:
            hog.append(bytearray(size))
    except MemoryError:
        pass
del spare  # for the output
try:
    attune.attention(q, k, v, softcap=5.0)
except attune.OutOfMemory as error:
    hog.clear()
    assert isinstance(error, torch.OutOfMemoryError) and "torch" not in str(error), error
    print("said")
"""
    environment = {**os.environ, "PYTHONPATH": attune.__path__[0] + "/.."}
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    assert said.stdout == "said\n", said.stderr
