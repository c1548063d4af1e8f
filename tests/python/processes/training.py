"""Run by test_torch_distributed.py: `training.py CASE WORLD FOLDER` starts WORLD processes that
meet over gloo, and prints what the first one found, as JSON."""

import json
import os
import sys
import traceback
from pathlib import Path

import attune
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def largest(ours, expected):
    """The largest difference, as a part of the largest number."""
    ours, expected = ours.double(), expected.double()
    return ((ours - expected).abs().max() / expected.abs().max().clamp(min=1e-30)).item()


# --- data parallel --------------------------------------------------------------------------------


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = attune.MultiheadSelfAttention(48, 6)
        self.cross = attune.Attention(softcap=5.0)
        self.last = torch.nn.Linear(48, 1)

    def forward(self, x):
        x = x + self.attention(x)
        heads = x.view(*x.shape[:2], 6, 8).transpose(1, 2)
        x = x + self.cross(heads, heads, heads).transpose(1, 2).reshape(x.shape)
        return self.last(x)


def loss(model, x):
    return model(x).square().mean()


def data_parallel(rank, world):
    torch.manual_seed(3)
    model, x = Model(), torch.randn(2 * world, 17, 48)
    loss(model, x).backward()
    alone = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    parallel = DistributedDataParallel(model)  # its hooks live as long as it does
    loss(parallel, x[2 * rank : 2 * rank + 2]).backward()
    return {name: largest(p.grad, alone[name]) for name, p in model.named_parameters()}


# --- ring -----------------------------------------------------------------------------------------

# Length, heads of K, dtype, and options. What 8 chunks cannot share evenly, less than there are
# chunks, and one row for one process.
RINGS = {
    "full": (32, 4, torch.float32, {}),
    "causal": (32, 4, torch.float32, {"causal": True}),
    "causal, groups of heads": (64, 2, torch.float32, {"causal": True, "scale": 0.2}),
    "uneven": (37, 2, torch.float32, {}),
    "causal, uneven": (37, 1, torch.float32, {"causal": True, "softcap": 4.0}),
    "causal, few rows": (5, 4, torch.float32, {"causal": True}),
    "one row": (1, 4, torch.float32, {}),
    "causal, float64": (19, 2, torch.float64, {"causal": True}),
    "causal, bf16": (64, 4, torch.bfloat16, {"causal": True}),
    "causal, heads after rows": (37, 4, torch.float32, {"causal": True, "layout": "bshd"}),
}


def ring_case(length, heads, dtype, options):
    torch.manual_seed(5)
    sizes = ((4, 8), (heads, 8), (heads, 6))
    whole = [torch.randn(2, count, length, dim).to(dtype) for count, dim in sizes]
    dim = 2
    if options.get("layout") == "bshd":
        whole, dim = [t.transpose(1, 2).contiguous() for t in whole], 1
    weights, lse_weights = torch.randn(2, 4, length, 6), torch.randn(2, 4, length)
    weights = weights.transpose(1, 2) if dim == 1 else weights

    alone = [t.clone().requires_grad_() for t in whole]
    named = {**options, "is_causal": options.get("causal", False)}
    named.pop("causal", None)
    out, lse = attune.attention(*alone, return_lse=True, **named)
    ((out * weights.to(dtype)).sum() + (lse * lse_weights.to(lse.dtype)).sum()).backward()

    parts = [attune.distributed.shard_sequence(t, dim=dim).requires_grad_() for t in whole]
    part, part_lse = attune.distributed.ring_attention(*parts, return_lse=True, **options)
    mine = attune.distributed.shard_sequence(weights, dim=dim).to(dtype)
    mine_lse = attune.distributed.shard_sequence(lse_weights).to(part_lse.dtype)
    ((part * mine).sum() + (part_lse * mine_lse).sum()).backward()

    gather = lambda t, d=dim: attune.distributed.unshard_sequence(t, dim=d, length=length)  # noqa: E731
    found = {"out": largest(gather(part), out), "lse": largest(gather(part_lse, 2), lse)}
    for name, t, expected in zip("qkv", parts, alone, strict=True):
        assert t.grad.dtype == dtype
        found[f"d{name}"] = largest(gather(t.grad), expected.grad)
    return found


def ring_refusals(rank):
    """Every process raises, or the others would wait for it."""
    q = torch.randn(1, 2, 4 + rank, 8)
    words = []
    for call in (
        lambda: attune.distributed.ring_attention(q, q, q, length=64),
        lambda: attune.distributed.ring_attention(q, q[:, :, 1:], q[:, :, 1:]),
        lambda: attune.distributed.ring_attention(q[0], q[0], q[0]),
    ):
        try:
            call()
            words.append("nothing")
        except ValueError as error:
            words.append(str(error))
    return words


def ring_in_a_group(rank, world):
    """Two rings of two processes each, at once."""
    groups = [dist.new_group([n, n + 1]) for n in range(0, world, 2)]
    group = groups[rank // 2]
    torch.manual_seed(rank // 2)
    q = torch.randn(1, 2, 11, 8)
    part = attune.distributed.shard_sequence(q, group)
    out = attune.distributed.ring_attention(part, part, part, group, causal=True)
    whole = attune.distributed.unshard_sequence(out, group)
    return largest(whole, attune.attention(q, q, q, is_causal=True))


def ring(rank, world):
    found = {name: ring_case(*case) for name, case in RINGS.items()}
    return {
        "differences": found,
        "refusals": ring_refusals(rank),
        "group": ring_in_a_group(rank, world),
    }


# --- processes ------------------------------------------------------------------------------------


def work(case, rank, world, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=world)
    found = {"data_parallel": data_parallel, "ring": ring}[case](rank, world)
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def main(case, world, folder):
    attune.info()  # the ops are loaded once, for all
    children = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                work(case, rank, world, folder)
                status = 0
            except BaseException:
                traceback.print_exc()
            os._exit(status)
        children.append(child)
    # Where one fails, the others lose their connection to it, and fail too.
    if any([os.waitpid(child, 0)[1] for child in children]):
        sys.exit(1)
    print(json.dumps([json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
