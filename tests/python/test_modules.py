import re

import attune
import pytest
import torch
from attune._library import MODES
from torch.nn.functional import scaled_dot_product_attention as torch_sdpa


def test_attention_module():
    q, k, v = torch.randn(3, 2, 4, 9, 16)
    module = attune.Attention(is_causal=True, scale=0.3)
    torch.testing.assert_close(module(q, k, v), torch_sdpa(q, k, v, is_causal=True, scale=0.3))
    torch.testing.assert_close(module(q, k, v, is_causal=False), torch_sdpa(q, k, v, scale=0.3))
    assert "is_causal=True" in repr(module) and "scale=0.3" in repr(module)


def test_self_attention_is_min_gpts():
    torch.manual_seed(0)
    module = attune.MultiheadSelfAttention(48, 6).requires_grad_(False)
    x = torch.randn(2, 17, 48)
    q, k, v = (t.view(2, 17, 6, 8).transpose(1, 2) for t in module.c_attn(x).split(48, 2))
    expected = module.c_proj(torch_sdpa(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 17, 48))
    torch.testing.assert_close(module(x), expected, atol=2e-6, rtol=1e-5)
    with pytest.raises(ValueError, match="cannot share"):
        attune.MultiheadSelfAttention(48, 7)


def test_docstrings_name_every_mode():
    listed = re.search(r"^ +mode +(.*)$", attune.attention.__doc__, re.M)[1]
    in_words = re.search(r"by a mode: (.*)\.", attune.cuda_attention_forward.__doc__)[1]
    for text in (listed, in_words):
        assert set(re.findall(r"\w+", text)) - {"or"} == MODES.keys()


def test_names_of_the_ladder():
    q, k, v = torch.randn(3, 2, 4, 9, 16)
    mask = torch.zeros(2, 4, 9, 9)
    mask[..., :3] = -torch.inf
    for mode in ("naive", "fused", "auto"):
        out = attune.cuda_attention_forward(q, k, v, mode=mode, mask=mask)
        torch.testing.assert_close(out, torch_sdpa(q, k, v, mask), atol=2e-6, rtol=1e-5)
    out = attune.CUDAAttention(mode="fused")(q, k, v, is_causal=True, scale=0.5)
    torch.testing.assert_close(out, torch_sdpa(q, k, v, is_causal=True, scale=0.5))
    with pytest.raises(ValueError, match="mode"):
        attune.cuda_attention_forward(q, k, v, mode="my_mode")


def test_run_flash():
    q, k, v = torch.randn(7, 16), torch.randn(11, 16), torch.randn(11, 16)
    torch.testing.assert_close(attune.run_flash(q, k, v), torch_sdpa(q[None], k[None], v[None])[0])
    with pytest.raises(ValueError, match="K has 3"):
        attune.run_flash(q, k[None], v)


def test_tensors_of_a_module_are_its_buffers():
    module = attune.Attention(sinks=torch.randn(4), alibi_slopes=torch.rand(4), is_causal=True)
    assert set(module.state_dict()) == {"sinks", "alibi_slopes"}
    q, k, v = torch.randn(3, 2, 4, 9, 16).half()
    whole = {name: t.half().float() for name, t in module.state_dict().items()}
    out = module.half()(q, k, v)
    assert torch.equal(out, attune.attention(q, k, v, is_causal=True, **whole))


def test_modules_in_training(monkeypatch):
    monkeypatch.setattr(attune._fallback, "warn_once", pytest.fail)
    torch.manual_seed(0)
    module = attune.MultiheadSelfAttention(48, 6).eval()
    q, k, v = torch.randn(3, 2, 4, 9, 16)
    x = torch.randn(2, 17, 48)
    with torch.no_grad():
        expected = module(x)
    out = module(x)
    torch.testing.assert_close(out, expected)
    out.sum().backward()
    assert module.c_attn.weight.grad.abs().sum() > 0
    for other in (
        attune.Attention(window=(3, 0), sinks=torch.rand(4)),
        attune.CUDAAttention("auto"),
    ):
        recorded = q.clone().requires_grad_()
        other(recorded, k, v).sum().backward()
        assert recorded.grad.abs().sum() > 0


def test_sinks_of_a_module_are_trained():
    sinks = torch.nn.Parameter(torch.randn(4))
    q, k, v = torch.randn(3, 2, 4, 9, 16)
    attune.attention(q, k, v, sinks=sinks).square().sum().backward()
    assert sinks.grad.shape == (4,) and (sinks.grad != 0).all()
