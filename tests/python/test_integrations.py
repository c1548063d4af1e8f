"""torch's own function routed to ours, and Transformers: the same tokens as with SDPA."""

import attune
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.functional import scaled_dot_product_attention as torch_sdpa


def test_torchs_function_is_ours():
    q, k, v = torch.randn(3, 2, 4, 9, 16)
    expected = scaled_dot_product_attention(q, k, v, is_causal=True)
    with attune.sdpa() as routed:
        out = scaled_dot_product_attention(q, k, v, is_causal=True)
        torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
        scaled_dot_product_attention(q.requires_grad_(), k, v)
    assert torch.equal(out, attune.scaled_dot_product_attention(q.detach(), k, v, is_causal=True))
    torch.testing.assert_close(out, expected)
    assert routed.taken == 1 and sum(routed.left.values()) == 2
    assert "1 calls by attune, 2 by torch" in routed.report()
    assert "backward" in routed.report() and "dtype" in routed.report()
    scaled_dot_product_attention(q, k, v)
    assert routed.taken == 1


def test_a_gradient_still_flows_through_torchs():
    q, k, v = torch.randn(3, 1, 2, 5, 8)
    q.requires_grad_()
    with attune.sdpa():
        scaled_dot_product_attention(q, k, v).sum().backward()
    assert q.grad.abs().sum() > 0


transformers = pytest.importorskip("transformers")


def llama(**options):
    config = transformers.LlamaConfig(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        **options,
    )
    return transformers.LlamaForCausalLM(config)


def mistral():
    config = transformers.MistralConfig(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=6,
    )
    return transformers.MistralForCausalLM(config)


def gpt2():
    config = transformers.GPT2Config(vocab_size=97, n_embd=64, n_layer=2, n_head=4, n_positions=128)
    return transformers.GPT2LMHeadModel(config)


@pytest.mark.parametrize("make", [llama, mistral, gpt2])
@pytest.mark.parametrize("padded", [False, True])
def test_generation_gives_the_same_tokens(make, padded):
    torch.manual_seed(0)
    model = make().eval()
    tokens = torch.randint(1, 97, (3, 12))
    mask = torch.ones_like(tokens)
    if padded:
        mask[0, :5] = 0
        mask[1, :1] = 0
    results, logits = {}, {}
    for name in ("sdpa", attune.register_transformers()):
        model.set_attn_implementation(name)
        with torch.no_grad():
            logits[name] = model(tokens, attention_mask=mask).logits[mask.bool()]
        results[name] = model.generate(
            tokens, attention_mask=mask, max_new_tokens=20, do_sample=False, pad_token_id=0
        )
    torch.testing.assert_close(logits["attune"], logits["sdpa"], atol=1e-4, rtol=1e-4)
    assert torch.equal(results["attune"], results["sdpa"])
    assert results["attune"].shape == (3, 32)


def test_multihead_attention_is_seen():
    module = torch.nn.MultiheadAttention(64, 4, batch_first=True).requires_grad_(False)
    x = torch.randn(2, 9, 64)
    expected, _ = module(x, x, x, need_weights=False)
    with attune.sdpa() as routed:
        out, _ = module(x, x, x, need_weights=False)
    assert routed.taken == 1, routed.report()
    torch.testing.assert_close(out, expected, atol=2e-6, rtol=1e-5)
    assert torch.nn.functional.scaled_dot_product_attention is torch_sdpa


def test_sinks_in_half_precision():
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers, "GptOssConfig"):
        pytest.skip("this Transformers has no GPT-OSS")
    attune.register_transformers()
    sizes = dict(hidden_size=64, intermediate_size=64, num_hidden_layers=1, vocab_size=50)
    heads = dict(num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_local_experts=2)
    config = transformers.GptOssConfig(**sizes, **heads, num_experts_per_tok=1)
    torch.manual_seed(0)
    model = transformers.GptOssForCausalLM(config).half().eval()
    ids = torch.randint(50, (1, 7))
    with torch.no_grad():
        expected = model(ids).logits
        model.set_attn_implementation("attune")
        torch.testing.assert_close(model(ids).logits, expected, atol=1e-2, rtol=1e-2)
