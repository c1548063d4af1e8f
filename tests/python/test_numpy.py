"""NumPy arrays and DLPack, without torch in the way."""

import os
import subprocess
import sys

import attune
import numpy as np
import pytest


def arrays(rng, q=(2, 4, 33, 32), k=None, v=None, dtype=np.float32):
    k = k or q
    return [rng.standard_normal(shape).astype(dtype) for shape in (q, k, v or k)]


def plain(q, k, v, mask=None, scale=None):
    """float64, with heads repeated."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
    s = q @ k.swapaxes(-1, -2) * (scale or q.shape[-1] ** -0.5)
    if mask is not None:
        s = np.where(mask, s, -np.inf) if mask.dtype == bool else s + mask
    p = np.exp(s - s.max(-1, keepdims=True))
    return p @ v / p.sum(-1, keepdims=True), np.log(p.sum(-1)) + s.max(-1)


@pytest.mark.parametrize("mode", ["auto", "naive", "fused", "reference"])
@pytest.mark.parametrize("dtype,limit", [(np.float32, 2e-6), (np.float16, 2e-3)])
def test_it_is_attention(rng, mode, dtype, limit):
    q, k, v = arrays(rng, (2, 4, 33, 32), (2, 2, 47, 32), (2, 2, 47, 16), dtype)
    out, lse = attune.attention(q, k, v, mode=mode, return_lse=True)
    expected, expected_lse = plain(q, k, v)
    assert out.dtype == dtype and out.shape == (2, 4, 33, 16)
    assert np.abs(out - expected).max() < limit
    assert lse.dtype == np.float32
    assert np.abs(lse - expected_lse).max() < 1e-5


def test_layouts_and_strides_need_no_copy(rng):
    q, k, v = arrays(rng)
    expected = attune.attention(q, k, v)
    seq_first = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v)]
    out = attune.attention(*seq_first, layout="bshd")
    np.testing.assert_array_equal(out.swapaxes(1, 2), expected)
    views = [x.swapaxes(1, 2) for x in seq_first]
    np.testing.assert_array_equal(attune.attention(*views), expected)
    columns = [np.asfortranarray(x) for x in (q, k, v)]  # rows are not together: copied
    np.testing.assert_array_equal(attune.attention(*columns), expected)


def test_masks(rng):
    q, k, v = arrays(rng)
    keep = rng.random((2, 1, 33, 33)) < 0.7
    keep[..., 0] = True
    bias = rng.standard_normal((33, 33)).astype(np.float32)
    for mask in (keep, bias):
        assert np.abs(attune.attention(q, k, v, mask=mask) - plain(q, k, v, mask)[0]).max() < 2e-6
    causal = np.tril(np.ones((33, 33), bool))
    out = attune.attention(q, k, v, is_causal=True)
    assert np.abs(out - plain(q, k, v, causal)[0]).max() < 2e-6


def test_a_ragged_batch(rng):
    lengths = [5, 1, 9]
    ends = np.cumsum([0, *lengths]).astype(np.int32)
    q, k, v = (rng.standard_normal((15, 4, 16)).astype(np.float32) for _ in range(3))
    out, lse = attune.attention(
        q,
        k,
        v,
        cu_seqlens_q=ends,
        cu_seqlens_k=ends,
        max_seqlen_q=9,
        max_seqlen_k=9,
        return_lse=True,
    )
    assert lse.shape == (4, 15)
    for begin, end in zip(ends[:-1], ends[1:], strict=True):
        one = [x[None, begin:end].swapaxes(1, 2) for x in (q, k, v)]
        np.testing.assert_allclose(out[begin:end].swapaxes(0, 1)[None], plain(*one)[0], atol=2e-6)


@pytest.mark.parametrize(
    "options,words",
    [
        ({"mode": "fast"}, "mode is 'fast'"),
        ({"layout": "shbd"}, "layout is 'shbd'"),
        ({"scale": 0.0}, "scale is 0.0"),
        ({"causal_alignment": "left"}, "causal_alignment is 'left'"),
        ({"dropout_p": 1.5}, "dropout_p"),
        ({"mask": np.zeros((3, 7), bool)}, "mask"),
    ],
)
def test_bad_input_is_named(rng, options, words):
    with pytest.raises(ValueError, match=words):
        attune.attention(*arrays(rng), **options)


def test_more_bad_input(rng):
    q, k, v = arrays(rng)
    with pytest.raises(ValueError, match="3, 4 and 4 dimensions"):
        attune.attention(q[0], k, v)
    with pytest.raises(ValueError, match="enable_gqa"):
        attune.scaled_dot_product_attention(q, k[:, :2], v[:, :2])
    with pytest.raises(TypeError, match="list"):
        attune.attention([1], [2], [3])
    with pytest.raises(attune.Error, match="float64"):
        attune.attention(*(x.astype(np.float64) for x in (q, k, v)))
    with pytest.raises(ValueError, match="alignment"):
        attune.attention(q[:, :, :5], k, v, is_causal=True)
    with pytest.raises(NotImplementedError):
        attune.attention(q, k, v, mode="tiled")  # a GPU's


def test_explain_and_info(rng):
    said = attune.explain(*arrays(rng), is_causal=True)
    assert said["candidates"]
    facts = attune.info()
    assert facts["version"] == attune.__version__
    assert {"usable", "why"} <= set(facts["torch"])


class Foreign:
    """Arrays of a library that only speaks DLPack."""

    def __init__(self, array):
        self.array = array

    @classmethod
    def from_dlpack(cls, array):
        return cls(np.from_dlpack(array))

    def __array_namespace__(self):
        return Foreign

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_dlpack(rng):
    q, k, v = arrays(rng)
    out, lse = attune.attention(*map(Foreign, (q, k, v)), is_causal=True, return_lse=True)
    assert isinstance(out, Foreign)
    expected = attune.attention(q, k, v, is_causal=True)
    assert np.abs(out.array - expected).max() < 2e-6
    assert lse.array.shape == (2, 4, 33)


def test_numpy_users_do_not_wait_for_torch():
    code = (
        "import sys, numpy as np, attune; x = np.ones((1, 1, 4, 8), np.float32);"
        "attune.attention(x, x, x); assert 'torch' not in sys.modules"
    )
    environment = {**os.environ, "PYTHONPATH": attune.__path__[0] + "/.."}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_fields_of_records(rng):
    q, k, v = arrays(rng, (2, 4, 9, 16))
    records = np.zeros((2, 4, 9), dtype=[("a", "f4", (16,)), ("b", "i1")])
    records["a"] = q
    assert np.array_equal(attune.attention(records["a"], k, v), attune.attention(q, k, v))
    mask = rng.standard_normal((9, 9)).astype(np.float32)
    rows = np.zeros(9, dtype=[("m", "f4", (9,)), ("b", "i1")])
    rows["m"] = mask
    expected = attune.attention(q, k, v, mask=mask)
    assert np.array_equal(attune.attention(q, k, v, mask=rows["m"]), expected)
    with pytest.raises(attune.InvalidArgument, match="dimensions"):
        attune.attention(q, k, v, mask=mask[None, None, None])


def test_explain_takes_what_the_call_takes(rng):
    q, k, v = arrays(rng)
    turned = np.ascontiguousarray(q.swapaxes(2, 3)).swapaxes(2, 3)
    for arguments in ((turned, k, v), [Foreign(x) for x in (q, k, v)]):
        assert attune.explain(*arguments)["candidates"]


def test_jax():
    pytest.importorskip("jax")
    from attune.examples import with_jax

    assert with_jax.main() < 1e-6
