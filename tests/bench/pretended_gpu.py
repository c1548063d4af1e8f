"""A GPU that is only pretended, for whole runs of the comparisons: torch computes, and a clock of
our own runs, by which every call is as long as the next."""

import contextlib
import math
import random
import sys
import types

import torch

attune_ctypes = sys.modules["attune_ctypes"]  # the one of what is tested


class FakeEvent:
    clock = 0.0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        FakeEvent.clock += 0.01 * random.uniform(0.9, 1.1)
        self.at = FakeEvent.clock

    def elapsed_time(self, end):
        return end.at - self.at


class FakeCall:
    """What attune_ctypes.CudaCall is to the comparison, computed by torch."""

    spoil = spoil_lse = 0.0
    lengths = []  # of all calls that had them

    def __init__(self, lib, q, k, v, out, mode, causal, mask=None, lse=None, key_lengths=None, **_):
        if key_lengths is not None:
            FakeCall.lengths.append(key_lengths)
        if mode == attune_ctypes.MODES["tiled"]:
            raise attune_ctypes.Error("tiled: not today")
        self.args = types.SimpleNamespace(workspace_bytes=3 << 20)
        self.run = lambda: torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=bool(causal), enable_gqa=q.shape[1] != k.shape[1]
        )
        self.lse = lse
        if lse is not None:
            keys = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).float()
            scores = q.float() @ keys.mT / q.shape[3] ** 0.5
            if causal:
                hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
                scores = scores.masked_fill(hidden, -math.inf)
            self.right = scores.logsumexp(-1)

    def on_stream(self, stream):
        return self

    def __call__(self):
        if self.lse is not None:
            self.lse.copy_(self.right + self.spoil_lse)
        return self.run() + self.spoil


class FakeGraph:
    """What a graph replays was computed while it was captured."""

    replayed = 0

    @staticmethod
    @contextlib.contextmanager
    def capture(graph):
        yield

    def replay(self):
        FakeGraph.replayed += 1


class FakeLibrary:
    def explain(self, args):
        return {"chosen": "sm90.attn_fwd.f32.d16/pretended"}

    def version(self):
        return "0.0.0"


def pretend(monkeypatch, cuda, folder):
    """As far as compare_cuda can see, with a library in the folder."""
    for name in ("attune", "libattune.so"):
        (folder / name).touch()
    for name, value in dict(
        is_available=lambda: True,
        get_device_name=lambda: "pretended GPU",
        synchronize=lambda: None,
        empty_cache=lambda: None,
        mem_get_info=lambda: (1 << 30, 1 << 31),
        _sleep=lambda cycles: None,
        Event=FakeEvent,
        CUDAGraph=FakeGraph,
        graph=FakeGraph.capture,
        current_stream=lambda: None,
    ).items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(cuda.attune_ctypes, "CudaCall", FakeCall)
    monkeypatch.setattr(cuda.attune_ctypes, "load", lambda path: FakeLibrary())
    monkeypatch.setattr(FakeCall, "lengths", [])
    monkeypatch.setattr(FakeCall, "spoil", 0.0)
    monkeypatch.setattr(FakeCall, "spoil_lse", 0.0)
    monkeypatch.setattr(cuda, "HEAT_SECONDS", 0.0)
    monkeypatch.setattr(cuda, "BURST_SECONDS", 0.0)
    monkeypatch.setattr(cuda, "FLUSH_BYTES", 1024)
