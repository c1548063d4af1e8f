"""Run by test_explain.py with a library in front that keeps the arguments of attune_forward and of
attune_explain: for each case, what was explained and what was called must be the same."""

import ctypes
import json

import attune
import torch
from attune import _library
from torch.nn.attention.bias import causal_lower_right

recorder = ctypes.CDLL(None)
for name in ("recorded_forward", "recorded_explain"):
    getattr(recorder, name).restype = ctypes.POINTER(_library.Args)

torch.manual_seed(0)
torch.set_num_threads(3)  # not what the library would choose by itself


def rows(*shape, **options):
    return torch.randn(shape, **options)


Q = rows(2, 4, 24, 16)
CROSS = rows(2, 4, 24, 16), rows(2, 2, 40, 16), rows(2, 2, 40, 8)
PACKED = rows(20, 4, 16), rows(30, 2, 16), rows(30, 2, 8)
ENDS = (
    torch.tensor([0, 7, 20], dtype=torch.int32),
    torch.tensor([0, 21, 30], dtype=torch.int32),
)
SEEN = torch.rand(24, 40) < 0.8

# By argument of attention(): [(q, k, v), keywords] that bring it in.
CASES = {
    "mask": [(CROSS, {"mask": SEEN}), (CROSS, {"mask": rows(2, 1, 24, 40)}),
             ((Q, Q, Q), {"mask": causal_lower_right(24, 24)}),
             (CROSS, {"mask": causal_lower_right(24, 40)})],
    "is_causal": [((Q, Q, Q), {"is_causal": True})],
    "causal_alignment": [(CROSS, {"is_causal": True, "causal_alignment": name})
                         for name in ("top_left", "bottom_right")],
    "scale": [((Q, Q, Q), {"scale": 0.3})],
    "window": [((Q, Q, Q), {"window": 3}), ((Q, Q, Q), {"window": (4, None)}),
               (CROSS, {"window": (None, 2), "causal_alignment": "bottom_right"}),
               ((Q, Q, Q), {"window": (100, 100)})],
    "softcap": [((Q, Q, Q), {"softcap": 7.0})],
    "alibi_slopes": [((Q, Q, Q), {"alibi_slopes": rows(4)}),
                     ((Q, Q, Q), {"alibi_slopes": rows(2, 4)})],
    "sinks": [((Q, Q, Q), {"sinks": rows(4)})],
    "dropout_p": [((Q, Q, Q), {"dropout_p": 0.2})],
    "dropout_seed": [((Q, Q, Q), {"dropout_p": 0.2, "dropout_seed": 2**63 + 5})],
    "dropout_offset": [((Q, Q, Q), {"dropout_p": 0.2, "dropout_seed": 1, "dropout_offset": 9})],
    "enable_gqa": [((Q, Q, Q), {"enable_gqa": False}),
                   ((Q, Q[:1], Q[:1]), {"enable_gqa": False}), (CROSS, {"enable_gqa": True})],
    "block_mask": [((Q, Q, Q), {"block_mask": torch.ones(1, 1, dtype=torch.bool)})],
    "block_size": [((Q, Q, Q), {"block_mask": torch.eye(3, dtype=torch.bool),
                                "block_size": (8, 9)})],
    "cu_seqlens_q": [(PACKED, {"cu_seqlens_q": ENDS[0], "cu_seqlens_k": ENDS[1]})],
    "cu_seqlens_k": [(PACKED, {"cu_seqlens_q": ENDS[0], "cu_seqlens_k": ENDS[1],
                               "return_lse": True})],
    "max_seqlen_q": [(PACKED, {"cu_seqlens_q": ENDS[0], "cu_seqlens_k": ENDS[1],
                               "max_seqlen_q": 13, "max_seqlen_k": 21})],
    "max_seqlen_k": [],
    "key_lengths": [(CROSS, {"key_lengths": torch.tensor([40, 0], dtype=torch.int32)}),
                    (CROSS, {"key_lengths": torch.tensor([41, 0], dtype=torch.int32)}),
                    (CROSS, {"key_lengths": torch.tensor([40, 7, 3], dtype=torch.int32)[::2],
                             "is_causal": True, "causal_alignment": "bottom_right"})],
    "score_mod": [((Q, Q, Q), {"score_mod": "return score;"})],
    "mask_mod": [((Q, Q, Q), {"mask_mod": "return true;"})],
    "user_data": [((Q, Q, Q), {"user_data": rows(3)})],
    "mode": [((Q, Q, Q), {"mode": mode}) for mode in
             ("reference", "naive", "fused", "tiled", "mma", "wgmma")],
    "layout": [((Q, Q, Q), {"layout": "bshd"}),
               ((Q, Q, Q), {"layout": "bshd", "return_lse": True})],
    "return_lse": [((Q, Q, Q), {"return_lse": True})],
    "strict_fp32": [((Q, Q, Q), {"strict_fp32": True})],
    "batch_invariant": [((Q, Q, Q), {"batch_invariant": True})],
    # And the tensors themselves.
    "q": [((Q.mT.contiguous().mT, Q, Q), {}), ((Q.bfloat16(),) * 3, {"return_lse": True}),
          ((Q.transpose(1, 2).contiguous().transpose(1, 2), Q, Q), {}),
          ((Q[:, :, :0], Q, Q), {}), ((Q, Q.half(), Q), {}), ((Q, Q, Q[:, :3]), {})],
}  # fmt: skip


def fields(pointer, outputs):
    """Of the struct; of an address its alignment, which is all of it that selection sees, and
    nothing of what only the call allocates."""
    args = pointer.contents
    found = {}
    for name, kind in _library.Args._fields_:
        value = getattr(args, name)
        if kind is _library.Tensor:
            address = None if name in outputs else (value.data or 0) % 64
            ranks = range(value.rank)
            value = [address, value.dtype, [(value.shape[d], value.stride[d]) for d in ranks]]
        elif name == "parallel_for":
            value = ctypes.cast(value, ctypes.c_void_p).value
        found[name] = str(value)
    return found


def outcome(function, pointer, *arguments, **keywords):
    """What the library was asked, or the refusal; and what came back."""
    recorder.forget()
    try:
        result = function(*arguments, **keywords)
    except Exception as error:
        return f"{type(error).__name__}: {error}", None
    seen = getattr(recorder, pointer)()
    return (fields(seen, ("out", "lse")) if seen else "not called"), result


def difference(tensors, keywords):
    called, _ = outcome(attune.attention, "recorded_forward", *tensors, **keywords)
    explained, said = outcome(attune.explain, "recorded_explain", *tensors, **keywords)
    if called == "not called":  # nothing to compute
        return None if said["mode"] == "none" else f"explained: {said}"
    if isinstance(called, str) or isinstance(explained, str):
        return None if called == explained else f"called: {called}; explained: {explained}"
    if "dropout_seed" not in keywords:  # the call draws one
        called["dropout_seed"] = explained["dropout_seed"]
    wrong = {name: (called[name], explained[name])
             for name in called if called[name] != explained[name]}  # fmt: skip
    return f"called and explained: {wrong}" if wrong else None


def main():
    found = {}
    for argument, cases in CASES.items():
        for number, (tensors, keywords) in enumerate(cases):
            with torch.no_grad():
                found[f"{argument} {number}"] = difference(tensors, keywords)
    with torch.autocast("cpu", torch.bfloat16):
        found["autocast"] = difference((Q, Q, Q), {"return_lse": True})
    print(json.dumps(found))


if __name__ == "__main__":
    main()
