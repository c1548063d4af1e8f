"""torch's own function routed to ours, and Transformers: the same tokens as with SDPA."""

import threading

import attune
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.functional import scaled_dot_product_attention as torch_sdpa


@pytest.fixture(autouse=True)
def warned(monkeypatch):
    monkeypatch.setattr(attune._fallback, "_warned", True)


def test_torchs_function_is_ours():
    q, k, v = torch.randn(3, 2, 4, 9, 16)
    expected = scaled_dot_product_attention(q, k, v, is_causal=True)
    with attune.sdpa() as routed:
        out = scaled_dot_product_attention(q, k, v, is_causal=True)
        torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
        scaled_dot_product_attention(q.requires_grad_(), k, v)
    assert torch.equal(out, attune.scaled_dot_product_attention(q.detach(), k, v, is_causal=True))
    torch.testing.assert_close(out, expected)
    assert routed.taken == 2 and sum(routed.left.values()) == 1
    assert "2 calls by attune, 1 by torch" in routed.report()
    assert "dtype" in routed.report()
    scaled_dot_product_attention(q, k, v)
    assert routed.taken == 2


def gradients(call, inputs):
    inputs = [t.clone().requires_grad_() for t in inputs]
    call(*inputs).square().sum().backward()
    return [t.grad for t in inputs]


def test_gradients_of_a_routed_call():
    inputs = torch.randn(3, 1, 2, 5, 8)
    expected = gradients(scaled_dot_product_attention, inputs)
    with attune.sdpa() as routed:
        found = gradients(scaled_dot_product_attention, inputs)
    assert routed.taken == 1
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_a_module_of_torchs_trains():
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(64, 4, batch_first=True)
    x = torch.randn(2, 9, 64)

    def trained():
        module.zero_grad()
        (found,) = gradients(lambda x: module(x, x, x, need_weights=False)[0], [x])
        return [found, *(p.grad.clone() for p in module.parameters())]

    expected = trained()
    with attune.sdpa() as routed:
        found = trained()
    assert routed.taken == 1 and not routed.left, routed.report()
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_a_recorded_call_without_a_backward_pass_warns(monkeypatch):
    monkeypatch.setattr(attune._fallback, "_warned", False)
    monkeypatch.setattr(attune._gradients, "why_not", lambda *t, **more: "for this device yet")
    q, k, v = torch.randn(3, 1, 2, 5, 8)
    q.requires_grad_()
    with attune.sdpa() as routed, pytest.warns(UserWarning, match="no backward pass") as said:
        scaled_dot_product_attention(q, k, v)
        scaled_dot_product_attention(q, k, v)
    assert len(said) == 1 and "2 left: attune has no backward pass" in routed.report()


@pytest.mark.parametrize(
    "backends", [SDPBackend.MATH, [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]]
)
def test_a_choice_of_backends_is_respected(backends):
    q, k, v = torch.randn(3, 2, 4, 9, 16)
    with sdpa_kernel(backends):
        expected = scaled_dot_product_attention(q, k, v)
        with attune.sdpa() as routed:
            assert torch.equal(scaled_dot_product_attention(q, k, v), expected)
            scaled_dot_product_attention(q, k, v)
    assert routed.taken == 0 and "sdpa_kernel" in routed.report()
    with attune.sdpa() as routed:
        with sdpa_kernel(backends):
            scaled_dot_product_attention(q, k, v)
        scaled_dot_product_attention(q, k, v)
    assert routed.taken == 1


@pytest.mark.parametrize("keys", [9, 12])
@pytest.mark.parametrize("make", [causal_upper_left, causal_lower_right])
def test_torchs_causal_masks_are_taken(make, keys):
    q, k, v = torch.randn(2, 2, 9, 16), torch.randn(2, 2, keys, 16), torch.randn(2, 2, keys, 16)
    expected = scaled_dot_product_attention(q, k, v, make(9, keys))
    with attune.sdpa() as routed:
        out = scaled_dot_product_attention(q, k, v, attn_mask=make(9, keys))
    assert routed.taken == 1, routed.report()
    torch.testing.assert_close(out, expected, atol=2e-6, rtol=1e-5)
    with pytest.raises(ValueError, match="causal=True"), attune.sdpa():
        scaled_dot_product_attention(q, k, v, make(9, keys), is_causal=True)


def encoder():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 96, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2).eval()


@pytest.mark.parametrize("padded", [False, True])
def test_the_encoders_fused_path_stays(padded, monkeypatch):
    model, x = encoder(), torch.randn(2, 9, 64)
    mask = torch.arange(9) >= torch.tensor([[9], [5]]) if padded else None
    calls = []
    fused = torch._transformer_encoder_layer_fwd
    monkeypatch.setattr(
        torch,
        "_transformer_encoder_layer_fwd",
        lambda *args: calls.append(1) or fused(*args),
    )
    with torch.no_grad():
        expected = model(x, src_key_padding_mask=mask)
        assert len(calls) == 2
        with attune.sdpa() as routed:
            assert torch.equal(model(x, src_key_padding_mask=mask), expected)
    assert len(calls) == 4
    assert "1 left: the fused path of TransformerEncoder" in routed.report()


def test_an_encoder_without_a_fused_path_is_ours():
    model, x = encoder().train(), torch.randn(2, 9, 64)
    with torch.no_grad():
        expected = model(x)
        with attune.sdpa() as routed:
            out = model(x)
    assert routed.taken == 2 and not routed.left, routed.report()
    torch.testing.assert_close(out, expected, atol=2e-6, rtol=1e-5)


def test_torchs_modules_are_as_before_afterwards():
    with attune.sdpa() as routed:
        pass
    del routed
    for kind in (torch.nn.MultiheadAttention, torch.nn.TransformerEncoder):
        assert "__call__" not in vars(kind)
    assert torch.nn.functional.scaled_dot_product_attention is torch_sdpa


def test_threads_are_routed_each_by_itself():
    module = torch.nn.MultiheadAttention(64, 4, batch_first=True).requires_grad_(False)
    x = torch.randn(2, 9, 64)
    both = threading.Barrier(2, timeout=60)
    routed = [attune.sdpa(), attune.sdpa()]

    def meet(module, args):
        both.wait()

    module.register_forward_pre_hook(meet)

    def work(mode):
        with mode:
            for _ in range(20):
                module(x, x, x, need_weights=False)

    threads = [threading.Thread(target=work, args=(mode,)) for mode in routed]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [mode.taken for mode in routed] == [20, 20]
    assert torch.nn.functional.scaled_dot_product_attention is torch_sdpa


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


def bert():
    sizes = dict(vocab_size=97, hidden_size=64, num_hidden_layers=1, intermediate_size=96)
    return transformers.BertModel(transformers.BertConfig(**sizes, num_attention_heads=4))


def t5():
    sizes = dict(vocab_size=97, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4)
    config = transformers.T5Config(**sizes, decoder_start_token_id=0)
    return transformers.T5ForConditionalGeneration(config)


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


@pytest.mark.parametrize("padded", [False, True])
def test_position_bias(padded):
    torch.manual_seed(0)
    model = t5().eval()
    tokens, decoded = torch.randint(1, 97, (2, 12)), torch.randint(1, 97, (2, 7))
    mask = torch.ones_like(tokens)
    if padded:
        mask[0, 8:] = 0
    results = {}
    for name in ("eager", attune.register_transformers()):
        model.set_attn_implementation(name)
        with torch.no_grad():
            logits = model(tokens, attention_mask=mask, decoder_input_ids=decoded).logits
        generated = model.generate(tokens, attention_mask=mask, max_new_tokens=10, do_sample=False)
        results[name] = logits, generated
    torch.testing.assert_close(results["attune"][0], results["eager"][0], atol=1e-4, rtol=1e-4)
    assert torch.equal(results["attune"][1], results["eager"][1])


@pytest.mark.parametrize("masked", ["none", "bool", "additive"])
def test_position_bias_and_every_kind_of_mask(masked):
    from attune.integrations import _transformers_attention

    torch.manual_seed(0)
    module = torch.nn.Module()
    q, k, v = torch.randn(2, 4, 5, 16), torch.randn(2, 4, 9, 16), torch.randn(2, 4, 9, 16)
    bias = torch.randn(1, 4, 5, 9)
    keep = torch.rand(2, 1, 5, 9) < 0.7
    keep[..., 0] = True
    mask = {"none": None, "bool": keep, "additive": torch.randn(2, 1, 5, 9)}[masked]
    out, _ = _transformers_attention(
        module, q, k, v, mask, scaling=1.0, is_causal=masked == "none", position_bias=bias
    )
    if masked == "none":  # a static cache: the first five keys are there
        whole = bias.masked_fill(~torch.ones(5, 9, dtype=torch.bool).tril(), -torch.inf)
    else:
        whole = bias.masked_fill(~keep, -torch.inf) if masked == "bool" else bias + mask
    expected = torch_sdpa(q, k, v, whole.expand(2, -1, -1, -1), scale=1.0).transpose(1, 2)
    torch.testing.assert_close(out, expected, atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize("make", [llama, bert, t5])
def test_a_model_in_training(make, monkeypatch):
    """Its gradients are those with torch's attention, and no call was torch's."""
    monkeypatch.setattr(attune._fallback, "warn_once", pytest.fail)
    torch.manual_seed(0)
    model = make().eval()  # without dropout, which drops other weights
    tokens = torch.randint(1, 97, (2, 7))
    more = {"decoder_input_ids": tokens} if make is t5 else {}
    found = {}
    for name in ("eager", attune.register_transformers()):
        model.set_attn_implementation(name)
        model.zero_grad()
        model(tokens, **more)[0].square().mean().backward()
        found[name] = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    assert found["attune"].keys() == found["eager"].keys()
    for name, expected in found["eager"].items():
        torch.testing.assert_close(found["attune"][name], expected, atol=1e-4, rtol=1e-4)
    model.train()(tokens, **more)[0].square().mean().backward()  # with dropout, where it has one
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_heads_are_merged_without_a_copy():
    from attune.integrations import _transformers_attention

    q, k, v = (t.transpose(1, 2) for t in torch.randn(3, 2, 9, 4, 16))
    out, _ = _transformers_attention(torch.nn.Module(), q, k, v, None)
    assert out._is_view() and out.reshape(2, 9, 64).data_ptr() == out.data_ptr()


CUDA = pytest.param("cuda", marks=pytest.mark.gpu)


def compiled_as_before(make, device, recorded, backend):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = make().eval().to(device)
    tokens = torch.randint(1, 97, (2, 7), device=device)
    # No cache of keys: Dynamo cannot trace how some versions of Transformers make T5's.
    more = {"decoder_input_ids": tokens, "use_cache": False} if make is t5 else {}
    model.set_attn_implementation(attune.register_transformers())
    with torch.set_grad_enabled(recorded):
        expected = model(tokens, **more)[0]
        out = torch.compile(model, fullgraph=True, backend=backend)(tokens, **more)[0]
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_a_compiled_model(device):
    compiled_as_before(llama, device, False, "eager")


@pytest.mark.parametrize("device", [pytest.param("cpu", marks=pytest.mark.full), CUDA])
@pytest.mark.parametrize("make", [llama, mistral, gpt2, bert, t5])
@pytest.mark.parametrize("recorded", [False, True])
def test_compiled_models(make, recorded, device):
    compiled_as_before(make, device, recorded, "aot_eager")
