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


@pytest.mark.parametrize("mode", ["auto", "reference", "naive"])
def test_key_lengths(rng, mode):
    q = rng.standard_normal((3, 4, 5, 16)).astype(np.float32)
    k, v = (rng.standard_normal((3, 2, 20, 16)).astype(np.float32) for _ in range(2))
    lengths = np.array([7, 0, 20], np.int32)
    options = {"is_causal": True, "causal_alignment": "bottom_right", "mode": mode}
    options["return_lse"] = True
    out, lse = attune.attention(q, k, v, key_lengths=lengths, **options)
    for b, n in enumerate(lengths):
        some = [t[b : b + 1, :, :n] for t in (k, v)]
        expected, expected_lse = attune.attention(q[b : b + 1], *some, **options)
        np.testing.assert_allclose(out[b : b + 1], expected, atol=2e-6)
        np.testing.assert_allclose(lse[b : b + 1], expected_lse, atol=2e-6)
    assert np.all(out[1] == 0) and np.all(lse[1] == -np.inf)
    with pytest.raises(attune.InvalidArgument, match=r"key_lengths\[2\] is 21.* is 20"):
        attune.attention(q, k, v, key_lengths=np.array([7, 0, 21], np.int32))
    with pytest.raises(attune.InvalidArgument, match="numpy.int32"):
        attune.attention(q, k, v, key_lengths=np.array([7, 0, 20]))


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
    with pytest.raises(ValueError, match="alignment"):
        attune.attention(q[:, :, :5], k, v, is_causal=True)
    with pytest.raises(NotImplementedError):
        attune.attention(q, k, v, mode="tiled")  # a GPU's


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.1, "softcap": 1.3, "window": (5, 2)},
        {"mask": np.tril(np.ones((33, 33), bool))},
    ],
)
def test_float64_is_not_rounded(rng, options):
    q, k, v = arrays(rng, dtype=np.float64)
    out, lse = attune.attention(q, k, v, return_lse=True, **options)
    assert out.dtype == lse.dtype == np.float64
    s = q @ k.swapaxes(-1, -2) * options.get("scale", 32**-0.5)
    if "softcap" in options:
        s = 1.3 * np.tanh(s / 1.3)
    i, j = np.indices((33, 33))
    seen = options.get("mask", np.ones((33, 33), bool))
    if options.get("is_causal"):
        seen = j <= i
    if "window" in options:
        seen = (i - j <= 5) & (j - i <= 2)
    p = np.where(seen, np.exp(s), 0)
    np.testing.assert_allclose(out, p @ v / p.sum(-1, keepdims=True), rtol=0, atol=1e-14)
    np.testing.assert_allclose(lse, np.log(p.sum(-1)), rtol=0, atol=1e-14)


def test_float64_with_its_own_tensors(rng):
    q, k, v = arrays(rng, (1, 4, 9, 16), dtype=np.float64)
    bias, sinks, slopes = rng.standard_normal((9, 9)), rng.standard_normal(4), rng.random(4)
    out = attune.attention(q, k, v, mask=bias, sinks=sinks, alibi_slopes=slopes)
    i, j = np.indices((9, 9))
    s = q @ k.swapaxes(-1, -2) / 4 + bias - slopes[:, None, None] * abs(i - j)
    total = np.exp(s).sum(-1, keepdims=True) + np.exp(sinks)[:, None, None]
    np.testing.assert_allclose(out, np.exp(s) @ v / total, rtol=0, atol=1e-14)


def test_float64_is_the_references_alone(rng):
    q, k, v = arrays(rng, (1, 1, 4, 8), dtype=np.float64)
    said = attune.explain(q, k, v)
    assert said["mode"] == "reference"
    reasons = {c["mode"]: c["reason"] for c in said["candidates"]}
    assert "float64" in reasons["fused"] and "float64" in reasons["naive"]
    with pytest.raises(attune.Unsupported, match="float64"):
        attune.attention(q, k, v, mode="fused")


@pytest.mark.parametrize("shape", [(9, 16), (3, 9, 16), (2, 3, 9, 16), (2, 2, 3, 9, 16)])
@pytest.mark.parametrize("mask", [None, "shared", "whole"])
def test_any_rank_as_torchs_function(rng, shape, mask):
    q, k, v = arrays(rng, shape)
    keep = None
    if mask is not None:
        keep = rng.random((9, 9) if mask == "shared" else (*shape[:-1], 9)) < 0.7
        keep[..., 0] = True
    out = attune.scaled_dot_product_attention(q, k, v, keep)
    assert out.shape == shape
    lift = {2: (1, 1, 9), 3: (1, 3, 9), 4: (2, 3, 9), 5: (4, 3, 9)}[len(shape)]
    four = [x.reshape(*lift, 16) for x in (q, k, v)]
    four_mask = keep.reshape(*lift, 9) if mask == "whole" else keep
    np.testing.assert_allclose(out.reshape(*lift, 16), plain(*four, four_mask)[0], atol=2e-6)
    if len(shape) < 4:  # attention() too, and explain()
        both = attune.attention(q, k, v, mask=keep, return_lse=True)
        assert both[0].shape == shape and both[1].shape == shape[:-1]
        np.testing.assert_array_equal(both[0], out)
        assert attune.explain(q, k, v, mask=keep)["chosen"]


def test_what_leads_is_broadcast(rng):
    torch = pytest.importorskip("torch")
    for shapes in (((2, 3, 9, 16), (1, 3, 7, 16)), ((3, 9, 16), (7, 16)),
                   ((9, 16), (2, 3, 7, 16)), ((2, 1, 9, 16), (2, 3, 7, 16))):  # fmt: skip
        q, k, v = arrays(rng, *shapes)
        out = attune.scaled_dot_product_attention(q, k, v)
        theirs = torch.nn.functional.scaled_dot_product_attention(
            *(torch.from_numpy(x) for x in (q, k, v))
        )
        assert out.shape == tuple(theirs.shape)
        np.testing.assert_allclose(out, theirs, atol=2e-6)


@pytest.mark.parametrize(
    "dtype,advice",
    [(np.int64, "numpy.float32"), (np.complex64, "numpy.float32"), (">f4", "newbyteorder")],
)
def test_other_dtypes_are_refused_with_advice(rng, dtype, advice):
    q, k, v = arrays(rng, (1, 1, 4, 8))
    with pytest.raises(attune.InvalidArgument, match=rf"k has the dtype .*astype\(.*{advice}"):
        attune.attention(q, k.astype(dtype), v)


def test_other_dtypes_beside_them(rng):
    q, k, v = arrays(rng, (1, 1, 4, 8))
    with pytest.raises(attune.InvalidArgument, match=r"mask is float64.*astype\(numpy.float32\)"):
        attune.attention(q, k, v, mask=np.zeros((4, 4)))
    ends = np.array([0, 4])
    with pytest.raises(attune.InvalidArgument, match=r"cu_seqlens_q .*int64.*numpy.int32"):
        attune.attention(q[0], k[0], v[0], cu_seqlens_q=ends, cu_seqlens_k=ends)


@pytest.mark.parametrize("place", ["q", "k", "v", "mask"])
def test_masked_arrays_are_refused(rng, place):
    q, k, v = arrays(rng, (1, 1, 4, 8))
    given = {"q": q, "k": k, "v": v, "mask": np.ones((4, 4), bool)}
    given[place] = np.ma.masked_array(given[place], mask=np.zeros(given[place].shape, bool))
    for function in (attune.attention, attune.explain):
        with pytest.raises(TypeError, match=f"{place} is a masked array"):
            function(given["q"], given["k"], given["v"], mask=given["mask"])


@pytest.mark.parametrize(
    "options",
    [
        {"window": 2**63},
        {"window": (None, -(2**70))},
        {"dropout_p": 0.5, "dropout_seed": 2**64},
        {"dropout_p": 0.5, "dropout_seed": 1, "dropout_offset": 2**64},
        {"block_mask": np.ones((1, 1), bool), "block_size": (2**63, 1)},
        {"max_seqlen_q": 2**63},
    ],
)
@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_integers_beyond_64_bits(rng, options, kind):
    q, k, v = arrays(rng, (1, 1, 4, 8))
    if kind == "tensor":
        torch = pytest.importorskip("torch")
        q, k, v = (torch.from_numpy(x) for x in (q, k, v))
        options = {
            name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x
            for name, x in options.items()
        }
    name = [name for name in options if name not in ("dropout_p", "block_mask")][-1]
    for function in (attune.attention, attune.explain):
        with pytest.raises(ValueError, match=rf"{name} is .*2\^63"):
            function(q, k, v, **options)
    seeds = [attune.attention(q, k, v, dropout_p=0.5, dropout_seed=2**64 - 1, dropout_offset=n)
             for n in (0, 2**64 - 1)]  # fmt: skip
    assert (seeds[0] != seeds[1]).any()


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
