"""What torch must know of the ops: fake shapes, compilation, export, autocast, gradients."""

import os
import subprocess
import sys

import attune
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as torch_sdpa


def qkv(*shape, dtype=torch.float32):
    torch.manual_seed(0)
    return torch.randn(3, *shape).to(dtype).unbind(0)


def samples():
    attune.info()  # loads the ops
    q, k, v = qkv(2, 4, 9, 16)
    mask = torch.rand(9, 9) < 0.5
    full = (None,) * 6 + (0.0, 0.0, True, 1, -1, -1, 0, 0, 0, 0, 0.0, 0, 0, 0)
    yield torch.ops.attune.sdpa.default, (q, k, v, None, True, 0.0, False)
    yield torch.ops.attune.sdpa.default, (q, k, v, mask, False, 0.5, True)
    for layout in (0, 1):
        for lse in (False, True):
            rest = (mask if layout == 0 else None, *full, layout, False, False, lse, "", "")
            yield torch.ops.attune.attention.default, (q, k, v, *rest)


@pytest.mark.parametrize("n", range(6))
def test_opcheck(n):
    op, args = list(samples())[n]
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(op, args, test_utils=tests)


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


def test_gradients_are_refused_and_never_lost():
    q, k, v = qkv(1, 2, 9, 16)
    for n in range(3):
        args = [t.clone().requires_grad_(i == n) for i, t in enumerate((q, k, v))]
        for function in (attune.attention, attune.scaled_dot_product_attention):
            with pytest.raises(NotImplementedError, match="backward"):
                function(*args)
            with torch.no_grad():
                assert not function(*args).requires_grad


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


def test_vmap_of_the_rest_is_refused():
    q, k, v = qkv(3, 2, 4, 9, 16)
    with pytest.raises(NotImplementedError, match="vmap"):
        torch.func.vmap(lambda *t: attune.attention(*t, softcap=5.0))(q, k, v)


def test_forward_mode_is_refused():
    q, k, v = qkv(2, 4, 9, 16)
    for call in (attune.scaled_dot_product_attention, attune.attention):
        with pytest.raises(NotImplementedError, match="backward"):
            torch.func.jvp(lambda x, call=call: call(x, k, v), (q,), (torch.ones_like(q),))
        with pytest.raises(NotImplementedError, match="backward"), torch.no_grad():
            torch.func.jacfwd(lambda x, call=call: call(x, k, v))(q)


@pytest.mark.parametrize("options", [{}, {"softcap": 5.0}])
def test_an_exported_program_detaches_nothing(options, tmp_path):
    class Block(torch.nn.Module):
        def forward(self, q, k, v):
            return attune.attention(q, k, v, **options)

    q, k, v = qkv(2, 4, 9, 16)
    program = torch.export.export(Block(), (q, k, v))
    out = program.module()(q.clone().requires_grad_(), k, v)
    with pytest.raises(NotImplementedError, match="backward"):
        out.sum().backward()
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
