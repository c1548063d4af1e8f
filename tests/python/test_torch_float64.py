"""float64 tensors: the reference on the CPU, held against torch's own float64."""

import attune
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as torch_sdpa


def qkv(*shape):
    torch.manual_seed(0)
    return torch.randn(3, *shape, dtype=torch.float64).unbind(0)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.1},
        {"attn_mask": torch.randn(9, 9, dtype=torch.float64)},
        {"attn_mask": torch.ones(9, 9, dtype=torch.bool).tril()},
    ],
)
def test_it_is_torchs_to_the_last_digits(options):
    q, k, v = qkv(2, 4, 9, 16)
    ours = attune.scaled_dot_product_attention(q, k, v, **options)
    assert ours.dtype == torch.float64
    torch.testing.assert_close(ours, torch_sdpa(q, k, v, **options), rtol=0, atol=1e-14)


def test_lse_softcap_and_scale_are_not_rounded():
    q, k, v = qkv(2, 4, 9, 16)
    out, lse = attune.attention(q, k, v, scale=0.1, softcap=1.3, return_lse=True)
    scores = 1.3 * torch.tanh(0.1 * q @ k.mT / 1.3)
    assert lse.dtype == torch.float64
    torch.testing.assert_close(lse, scores.logsumexp(-1), rtol=0, atol=1e-14)
    torch.testing.assert_close(out, scores.softmax(-1) @ v, rtol=0, atol=1e-14)


def test_explain_names_the_reference():
    q, k, v = qkv(1, 2, 9, 16)
    assert attune.explain(q, k, v, return_lse=True)["mode"] == "reference"
    with pytest.raises(attune.Unsupported, match="float64"):
        attune.attention(q, k, v, mode="fused")
    with pytest.raises(attune.InvalidArgument, match="F64.*F32|F32.*F64"):
        attune.attention(q, k.float(), v)


def test_torch_knows_the_dtypes():
    q, k, v = qkv(1, 2, 9, 16)
    rest = (None,) * 8 + (0.1, 1.3, True, 1, -1, -1, 0, 0, 0, 0, 0.0, 0, 0, 0, 0, False, False)
    for lse in (False, True):
        torch.library.opcheck(
            torch.ops.attune.attention.default,
            (q, k, v, *rest, lse, "", ""),
            test_utils=("test_schema", "test_faketensor"),
        )


def test_unsupported_dtypes_come_with_advice():
    q = torch.ones(1, 1, 4, 8, dtype=torch.int64)
    with pytest.raises(attune.InvalidArgument, match=r"q has a dtype .*\.to\(torch.float32\)"):
        attune.attention(q, q, q)


def test_a_routed_call_stays_with_torch():
    q, k, v = qkv(1, 2, 9, 16)
    with attune.sdpa() as routed:
        torch_sdpa(q, k, v)
        torch_sdpa(query=q, key=k, value=v)
    assert routed.taken == 0 and "float64" in routed.report()
