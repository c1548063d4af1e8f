"""Run by test_explain.py with a library in front that keeps the arguments of attune_forward and of
attune_explain: for each case, what was explained and what was called must be the same. With
gradients and NumPy arrays too. Calls from ctypes go past that library: they are kept here."""

import ctypes
import json

import attune
import numpy as np
import torch
from attune import _library
from torch.autograd import forward_ad
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


class FromCtypes:
    """What recorder.c is for the torch ops."""

    def __init__(self):
        self.seen = {}
        for name in ("forward", "explain"):
            setattr(_library.Library, name, self.kept(name, getattr(_library.Library, name)))

    def kept(self, name, function):
        def keep(library, args):
            self.seen[f"recorded_{name}"] = _library.Args.from_buffer_copy(args)
            return function(library, args)

        return keep


from_ctypes = FromCtypes()


def recorded(name):
    pointer = getattr(recorder, name)()
    return pointer.contents if pointer else from_ctypes.seen.get(name)


def fields(args, outputs, alignment):
    """Of the struct; of an address its alignment, which is all of it that selection sees, and
    nothing of what only the call allocates."""
    found = {}
    for name, kind in _library.Args._fields_:
        value = getattr(args, name)
        if kind is _library.Tensor:
            address = None if name in outputs else (value.data or 0) % alignment
            ranks = range(value.rank)
            value = [address, value.dtype, [(value.shape[d], value.stride[d]) for d in ranks]]
        elif name == "parallel_for":
            value = ctypes.cast(value, ctypes.c_void_p).value
        found[name] = str(value)
    return found


def outcome(function, name, tensors, keywords):
    """What the library was asked, or the refusal; and what came back."""
    recorder.forget()
    from_ctypes.seen.clear()
    try:
        result = function(*tensors, **keywords)
    except Exception as error:
        return f"{type(error).__name__}: {error}", None
    # Copies that NumPy makes lie at any multiple of 16.
    alignment = 16 if isinstance(tensors[0], np.ndarray) else 64
    seen = recorded(name)
    return (fields(seen, ("out", "lse"), alignment) if seen else "not called"), result


def without_the_library(called, result, said):
    """Whether the explanation of a call that did not reach the library says why."""
    if said is None or not isinstance(called, str):
        return False
    if called.startswith("RuntimeError"):  # torch's own: explained is who computes it
        return said["computed_by"] == "torch"
    if result is None:
        return False
    out = result[0] if isinstance(result, tuple) else result
    by = "attune" if out.numel() == 0 else "torch"
    return called == "not called" and (said["mode"], said["computed_by"]) == ("none", by)


def difference(tensors, keywords):
    called, result = outcome(attune.attention, "recorded_forward", tensors, keywords)
    explained, said = outcome(attune.explain, "recorded_explain", tensors, keywords)
    if isinstance(called, str) or isinstance(explained, str):
        good = called == explained != "not called" or without_the_library(called, result, said)
        return None if good else f"called: {called}; explained: {explained}, {said}"
    if "dropout_seed" not in keywords:  # the call draws one
        called["dropout_seed"] = explained["dropout_seed"]
    wrong = {name: (called[name], explained[name])
             for name in called if called[name] != explained[name]}  # fmt: skip
    wrong |= {} if said["computed_by"] == "attune" else {"computed_by": said["computed_by"]}
    return f"called and explained: {wrong}" if wrong else None


def mapped(change, value):
    """The value with change(t) for each tensor t in it."""
    if isinstance(value, dict):
        return {name: mapped(change, part) for name, part in value.items()}
    if isinstance(value, tuple):
        return tuple(mapped(change, part) for part in value)
    return change(value) if isinstance(value, torch.Tensor) else value


def with_gradient(t):
    plain = type(t) is torch.Tensor and t.is_floating_point()
    return t.detach().requires_grad_() if plain else t


def can_be_arrays(tensors, keywords):
    given = [t for t in (*tensors, *keywords.values()) if isinstance(t, torch.Tensor)]
    return all(type(t) is torch.Tensor and t.dtype != torch.bfloat16 for t in given)


def main():
    found = {}
    for argument, cases in CASES.items():
        for number, case in enumerate(cases):
            name = f"{argument} {number}"
            with torch.no_grad():
                found[name] = difference(*case)
            found[f"{name} with gradients"] = difference(*mapped(with_gradient, case))
            if can_be_arrays(*case):
                found[f"{name} of arrays"] = difference(*mapped(torch.Tensor.numpy, case))
    with torch.autocast("cpu", torch.bfloat16):
        found["autocast"] = difference((Q, Q, Q), {"return_lse": True})
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(Q, rows(*Q.shape))
        found["forward mode"] = difference((dual, Q, Q), {"is_causal": True})
    with torch.no_grad():
        recording = mapped(with_gradient, (Q, Q, Q))
        found["gradients switched off"] = difference(recording, {"is_causal": True})
    print(json.dumps(found))


if __name__ == "__main__":
    main()
