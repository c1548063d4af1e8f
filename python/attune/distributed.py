"""Attention over a sequence that lies in parts on several processes (ring attention).

    rows = attune.distributed.shard_sequence(x)  # this process' part of a whole tensor
    out = attune.distributed.ring_attention(q, k, v, causal=True)
    whole = attune.distributed.unshard_sequence(out)

Every process keeps its rows of Q. K and V travel round the ring, one process further in each step,
while the step computes; parts of a row's result are merged by their LSE. In the backward pass the
gradients of K and V travel with them. Transfers are torch.distributed's: NCCL, gloo, any backend
that can send and receive.

A sequence is cut into 2 * world chunks, and process n has chunks n and 2 * world - 1 - n, in this
order (zig-zag): every step of a causal call is then as long for each process. Chunks differ by one
row at most, so any length can be cut."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from . import _gradients, _torch
from ._arguments import LAYOUTS, choose, scale_number
from ._decomposed import working_dtype
from ._fallback import NO_GRADIENTS, WITHOUT


@dataclass(frozen=True)
class _Shards:
    """How a sequence is cut."""

    length: int
    world: int

    def chunk(self, n):
        """(first row, rows) of one of the 2 * world chunks."""
        size, longer = divmod(self.length, 2 * self.world)
        return n * size + min(n, longer), size + (n < longer)

    def rows(self, rank):
        """The rows of a process' first and second chunk."""
        return self.chunk(rank)[1], self.chunk(2 * self.world - 1 - rank)[1]

    def positions(self, rank, device=None):
        first, last = self.chunk(rank), self.chunk(2 * self.world - 1 - rank)
        spans = (torch.arange(at, at + rows, device=device) for at, rows in (first, last))
        return torch.cat([*spans])


def _shards(rows, length, group, device):
    """Of a sequence of which this process has so many rows; without its length the processes ask
    each other."""
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    if length is None:
        total = torch.tensor(rows, device=device)
        dist.all_reduce(total, group=group)
        length = int(total)
    shards = _Shards(length, world)
    if rows != sum(shards.rows(rank)):
        raise ValueError(
            f"this process has {rows} rows; of a sequence of {length}, cut for {world} processes, "
            f"process {rank} has {sum(shards.rows(rank))} (shard_sequence cuts it)"
        )
    return shards


def shard_positions(length, group=None, device=None):
    """Where this process' rows stand in the whole sequence, for instance for rotary embeddings."""
    shards = _Shards(length, dist.get_world_size(group))
    return shards.positions(dist.get_rank(group), device)


def shard_sequence(whole, group=None, dim=2):
    """This process' part of a tensor that all of them have; `dim` is the sequence."""
    return whole.index_select(dim, shard_positions(whole.shape[dim], group, whole.device))


def unshard_sequence(part, group=None, dim=2, length=None):
    """The whole tensor, on every process; it records no gradients."""
    part = part.detach().movedim(dim, 0).contiguous()
    shards = _shards(part.shape[0], length, group, part.device)
    rows = [sum(shards.rows(n)) for n in range(shards.world)]
    padded = part.new_zeros((max(rows), *part.shape[1:]))
    padded[: part.shape[0]] = part
    parts = [torch.empty_like(padded) for _ in rows]
    dist.all_gather(parts, padded, group=group)
    whole = part.new_empty((shards.length, *part.shape[1:]))
    for n, (count, one) in enumerate(zip(rows, parts, strict=True)):
        whole[shards.positions(n, part.device)] = one[:count]
    return whole.movedim(0, dim)


_KEYS, _GRADIENTS = 1, 2  # tags: both are under way at once


class _Ring:
    """Sends tensors to the next process, and brings the previous one's."""

    def __init__(self, group):
        self.group = group
        self.world, self.rank = dist.get_world_size(group), dist.get_rank(group)
        group = dist.group.WORLD if group is None else group
        self.next = dist.get_global_rank(group, (self.rank + 1) % self.world)
        self.before = dist.get_global_rank(group, (self.rank - 1) % self.world)

    def owner(self, step):
        """Whose keys are here in a step."""
        return (self.rank - step) % self.world

    def start(self, tensors, shapes, tag):
        """The exchange, under way: `tensors` are sent, and as many of these shapes come."""
        sent = torch.cat([t.reshape(-1) for t in tensors])
        sizes = [shape.numel() for shape in shapes]
        come = sent.new_empty(sum(sizes))
        operations = [
            dist.P2POp(dist.isend, sent, self.next, self.group, tag),
            dist.P2POp(dist.irecv, come, self.before, self.group, tag),
        ]
        operations = [op for op in operations if op.tensor.numel() > 0]
        works = dist.batch_isend_irecv(operations) if operations else []
        return works, sent, come.split(sizes), shapes

    @staticmethod
    def finish(exchange):
        works, _, parts, shapes = exchange
        for work in works:
            work.wait()
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


@dataclass
class _Call:
    """What stays the same in all steps."""

    shards: _Shards
    ring: _Ring
    causal: bool
    options: dict  # of the op

    def exchange(self, tensors, step, tag):
        """Of what this process has in a step, for what it has in the next."""
        rows = sum(self.shards.rows(self.ring.owner(step + 1)))
        shapes = [torch.Size((*t.shape[:2], rows, t.shape[3])) for t in tensors]
        return self.ring.start(tensors, shapes, tag)

    def seen(self, owner):
        """(rows of Q, rows of the owner's K, causal) that a step multiplies, as slices."""
        rank, everything = self.ring.rank, slice(None)
        if not self.causal or owner == rank:
            return everything, everything, self.causal
        if owner < rank:  # its first chunk is before all of ours, its second one behind
            return everything, slice(self.shards.rows(owner)[0]), False
        return slice(self.shards.rows(rank)[0], None), everything, False

    def attend(self, q, k, v, causal):
        return _torch._call_attention(
            torch.ops.attune.attention.default,
            False,
            *(q, k, v),
            **{**self.options, "causal": causal, "want_lse": True},
        )

    def differentiate(self, dout, dlse, out, lse, q, k, v, causal):
        op = torch.ops.attune.attention_backward.default
        options = {**self.options, "causal": causal}
        return _gradients.call(op, dout, dlse, out, lse, q, k, v, **options)[:3]


def _merge(out, lse, rows, part, part_lse):
    """Adds a part of the keys to these rows of (out, lse)."""
    total = torch.logaddexp(lse[:, :, rows], part_lse)
    out[:, :, rows] *= (lse[:, :, rows] - total).exp()[..., None]
    out[:, :, rows] += part * (part_lse - total).exp()[..., None]
    lse[:, :, rows] = total


def _forward(call, q, k, v):
    """(out, lse) of all keys, summed in float32."""
    wide = working_dtype(q)
    out = q.new_zeros((*q.shape[:3], v.shape[3]), dtype=wide)
    lse = q.new_full(q.shape[:3], -torch.inf, dtype=wide)
    for step in range(call.ring.world):
        if step + 1 < call.ring.world:
            coming = call.exchange((k, v), step, _KEYS)
        rows, keys, causal = call.seen(call.ring.owner(step))
        some, k_part, v_part = q[:, :, rows], k[:, :, keys], v[:, :, keys]
        if some.numel() > 0 and k_part.numel() > 0:
            _merge(out, lse, rows, *call.attend(some, k_part, v_part, causal))
        if step + 1 < call.ring.world:
            k, v = call.ring.finish(coming)
    return out.to(q.dtype), lse


def _part_gradients(call, given, kept, k, v, causal):
    """dq, dk and dv of one step. The part's own result is computed again, and the gradients of the
    whole reach it by its weight among the parts, exp(part_lse - lse):
      dpart = weight * dout,  dpart_lse = weight * (dout . (part - out) + dlse)."""
    dout, dlse = given
    q, out, lse = kept
    part, part_lse = call.attend(q, k, v, causal)
    weight = (part_lse - lse).exp()
    dpart = (dout * weight[..., None]).to(q.dtype)
    dpart_lse = weight * ((dout * (part.to(dout.dtype) - out)).sum(-1) + dlse)
    return call.differentiate(dpart, dpart_lse, part, part_lse, q, k, v, causal)


def _backward(call, q, k, v, out, lse, dout, dlse):
    wide = working_dtype(q)
    dout, out = dout.to(wide), out.to(wide)
    dq = torch.zeros_like(q, dtype=wide)
    dkv, travelling = [torch.zeros_like(t, dtype=wide) for t in (k, v)], None
    for step in range(call.ring.world):
        owner, last = call.ring.owner(step), step + 1 == call.ring.world
        if not last:
            coming = call.exchange((k, v), step, _KEYS)
        rows, keys, causal = call.seen(owner)
        given, kept = ([t[:, :, rows] for t in some] for some in ((dout, dlse), (q, out, lse)))
        k_part, v_part = k[:, :, keys], v[:, :, keys]
        parts = ()
        if kept[0].numel() > 0 and k_part.numel() > 0:
            dq_part, *parts = _part_gradients(call, given, kept, k_part, v_part, causal)
            dq[:, :, rows] += dq_part
        if travelling is not None:
            dkv = call.ring.finish(travelling)
        for total, part in zip(dkv, parts, strict=False):
            total[:, :, keys] += part
        if call.ring.world > 1:  # after the last step they are home
            travelling = call.exchange(dkv, step, _GRADIENTS)
        if not last:
            k, v = call.ring.finish(coming)
    if travelling is not None:
        dkv = call.ring.finish(travelling)
    return (t.to(q.dtype) for t in (dq, *dkv))


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, call):
        out, lse = _forward(call, q, k, v)
        ctx.call = call
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx, dout, dlse):
        q, k, v, out, lse = ctx.saved_tensors
        # Every process takes its part in the ring, whether it has a gradient or not.
        dout = torch.zeros_like(out) if dout is None else dout
        dlse = torch.zeros_like(lse) if dlse is None else dlse
        return (*_backward(ctx.call, q, k, v, out, lse, dout, dlse), None)


def ring_attention(q, k, v, group=None, *, causal=False, scale=None, softcap=0.0, layout="bhsd",
                   length=None, return_lse=False):  # fmt: skip
    """Self-attention over the sequence whose parts the group's processes have (shard_sequence): q
    [B,H,S_local,D], k and v [B,Hkv,S_local,...], or layout="bshd". Every process of the group calls
    it. Returns this process' rows of the result, with return_lse also their LSE [B,H,S_local].

    length: of the whole sequence; None: the processes ask each other, which waits for them. The
    backward pass computes each part's forward pass again: nothing is kept but q, k, v, the result
    and LSE."""
    _torch.need_ops()
    bshd = choose("layout", layout, LAYOUTS) == 1
    if bshd:
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    if not q.ndim == k.ndim == v.ndim == 4 or not q.shape[2] == k.shape[2] == v.shape[2]:
        shapes = ", ".join(str(tuple(t.shape)) for t in (q, k, v))
        raise ValueError(f"q, k and v need 4 dimensions, and as many rows each: {shapes}")
    if torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v)):
        if why := _gradients.why_not(q, k, v):
            raise NotImplementedError(f"{NO_GRADIENTS} {why}: {WITHOUT}")
    q, k, v = _torch.autocast(q, k, v)
    options = {"scale": scale_number(scale), "softcap": float(softcap)}
    shards = _shards(q.shape[2], length, group, q.device)
    call = _Call(shards, _Ring(group), bool(causal), options)
    out, lse = _RingAttention.apply(q, k, v, call)
    out = out.transpose(1, 2) if bshd else out
    return (out, lse) if return_lse else out
