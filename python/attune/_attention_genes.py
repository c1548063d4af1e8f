"""Ways to compute attention in torch, as genes that mutations of three levels change: what
`python -m attune.sweep --generations` searches. Only what means something in torch, or in Attune's
kernels, is here."""

import contextlib
import dataclasses
import functools

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as torch_sdpa

from ._functions import attention

BACKENDS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "mem_eff": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
TILES = 32, 64, 128, 256, 512


@dataclasses.dataclass(frozen=True)
class Genome:
    form: str = "matmul"  # three steps in torch; sdpa: torch's own function; attune: ours
    scale: str = "scores"  # matmul: where the scale is applied; "product": by the product itself
    late_division: bool = False  # matmul: by the sums after P V, so that P is not written twice
    walk: str = "whole"  # matmul: "tiles" of queries, or "online" over tiles of keys
    tile: int = 128  # rows of those
    numbers: str = ""  # what is computed in: that of the inputs, float32 or bfloat16
    backend: str = ""  # sdpa: which one; torch chooses
    mode: str = "auto"  # attune: which rung
    threads: int = 0  # of the CPU; as torch has it
    switches: tuple = ()  # tf32, cudnn_benchmark

    @property
    def name(self):
        parts = [self.form]
        if self.form == "matmul":
            parts += [f"scale_in_{self.scale}"] if self.scale != "scores" else []
            parts += ["late_division"] if self.late_division else []
            parts += [f"{self.walk}{self.tile}"] if self.walk != "whole" else []
        parts += [self.backend] if self.form == "sdpa" and self.backend else []
        parts += [self.mode] if self.form == "attune" and self.mode != "auto" else []
        parts += [self.numbers] if self.numbers else []
        parts += [f"threads{self.threads}"] if self.threads else []
        return "+".join([*parts, *self.switches])


# ---- how a genome computes ----


def _scores(g, q, k):
    scale = q.shape[-1] ** -0.5
    if g.scale == "q":
        return (q * scale) @ k.transpose(-1, -2)
    if g.scale == "product":
        q3, k3 = q.flatten(0, -3), k.flatten(0, -3)
        out = torch.empty((), dtype=q.dtype, device=q.device)
        out = torch.baddbmm(out, q3, k3.transpose(-1, -2), beta=0, alpha=scale)
        return out.unflatten(0, q.shape[:-2])
    return q @ k.transpose(-1, -2) * scale


def _weighted(g, scores, v):
    if not g.late_division:
        return scores.softmax(-1) @ v
    weights = (scores - scores.amax(-1, keepdim=True)).exp_()
    return (weights @ v) / weights.sum(-1, keepdim=True)


def _online(g, q, k, v):
    top = torch.full((*q.shape[:-1], 1), -torch.inf, dtype=torch.float32, device=q.device)
    total = torch.zeros_like(top)
    out = torch.zeros(q.shape[:-1] + v.shape[-1:], dtype=torch.float32, device=q.device)
    for k_tile, v_tile in zip(k.split(g.tile, -2), v.split(g.tile, -2), strict=True):
        scores = _scores(g, q, k_tile).float()
        now = torch.maximum(top, scores.amax(-1, keepdim=True))
        shrink, weights = (top - now).exp(), (scores - now).exp_()
        total = total * shrink + weights.sum(-1, keepdim=True)
        out = out * shrink + (weights.to(v.dtype) @ v_tile).float()
        top = now
    return out / total


def _by_steps(g, q, k, v):
    if g.walk == "online":
        return _online(g, q, k, v)
    if g.walk == "tiles":
        parts = [_weighted(g, _scores(g, part, k), v) for part in q.split(g.tile, -2)]
        return torch.cat(parts, -2)
    return _weighted(g, _scores(g, q, k), v)


def _call(g, q, k, v):
    dtype = q.dtype
    if g.numbers:
        q, k, v = (x.to(getattr(torch, g.numbers)) for x in (q, k, v))
    if g.form == "matmul":
        out = _by_steps(g, q, k, v)
    elif g.form == "sdpa":
        out = torch_sdpa(q, k, v)
    else:
        out = attention(q, k, v, mode=g.mode)
    return out.to(dtype)


@contextlib.contextmanager
def _context(g):
    with contextlib.ExitStack() as stack:
        if g.form == "sdpa" and g.backend:
            stack.enter_context(sdpa_kernel(BACKENDS[g.backend]))
        before = torch.get_num_threads()
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        flags = matmul.allow_tf32, cudnn.benchmark
        try:
            if g.threads:
                torch.set_num_threads(g.threads)
            if "tf32" in g.switches:
                matmul.allow_tf32 = True
            if "cudnn_benchmark" in g.switches:
                cudnn.benchmark = True
            yield
        finally:
            torch.set_num_threads(before)
            matmul.allow_tf32, cudnn.benchmark = flags


def variant(g):
    """(function of q, k and v, the context that it runs in), as sweep.variants has them."""
    return functools.partial(_call, g), functools.partial(_context, g)


# ---- mutations: from a genome and the device to its children ----


def _set(only=None, cuda=False, **genes):
    """Sets genes where the form is the one that has them."""

    def children(g, device):
        if (only and g.form != only) or (cuda and device != "cuda"):
            return []
        return [dataclasses.replace(g, **genes)]

    return children


def _rung(mode, cuda=False):
    """A rung of Attune's ladder, from whatever form: the genes of other forms go."""

    def children(g, device):
        if cuda and device != "cuda":
            return []
        kept = {"numbers": g.numbers, "threads": g.threads, "switches": g.switches}
        return [Genome(form="attune", mode=mode, **kept)]

    return children


def _backends(g, device):
    names = list(BACKENDS) if device == "cuda" else ["math", "flash"]
    return [dataclasses.replace(g, backend=name) for name in names] if g.form == "sdpa" else []


def _block_size(g, device):
    if g.form != "matmul" or g.walk == "whole":
        return []
    at = TILES.index(g.tile)
    return [dataclasses.replace(g, tile=t) for t in TILES[max(at - 1, 0) : at + 2]]


def _threads(g, device):
    most = torch.get_num_threads()
    if device != "cpu" or most < 2:
        return []
    return [dataclasses.replace(g, threads=n) for n in {max(most // 2, 1), 1}]


def _switch(name):
    def children(g, device):
        if device != "cuda" or name in g.switches:
            return []
        return [dataclasses.replace(g, switches=tuple(sorted((*g.switches, name))))]

    return children


# (level, name, children, what it does)
MUTATIONS = [
    ("algorithm", "fuse_qk_softmax", _set("matmul", scale="product"), "scale by the product"),
    ("algorithm", "fuse_softmax_pv", _set("matmul", late_division=True), "divide after P V"),
    ("algorithm", "online_softmax", _set("matmul", walk="online"), "keys in tiles, one walk"),
    ("algorithm", "tiled_computation", _set("matmul", walk="tiles"), "queries in tiles"),
    ("algorithm", "fused_kernel", _set(form="sdpa"), "torch's own function"),
    ("algorithm", "attune_kernel", _set(form="attune"), "Attune's, as it chooses"),
    ("implementation", "scale_q", _set("matmul", scale="q"), "scale Q, which is smaller"),
    ("implementation", "use_float32_accum", _set("matmul", numbers="float32"), "all in float32"),
    ("implementation", "use_bfloat16", _set(numbers="bfloat16"), "all in bfloat16"),
    ("implementation", "choose_backend", _backends, "of torch's function"),
    ("implementation", "vectorized_loads", _rung("fused"), "Attune's fused rung"),
    ("implementation", "warp_reductions", _rung("naive", cuda=True), "Attune's, a warp a row"),
    ("implementation", "shared_memory", _rung("tiled", cuda=True), "Attune's tiled rung"),
    ("implementation", "tensor_cores", _rung("mma", cuda=True), "Attune's mma rung"),
    ("hardware", "tune_block_size", _block_size, "of tiles"),
    ("hardware", "tune_threads", _threads, "of the CPU"),
    ("hardware", "enable_tf32", _switch("tf32"), "float32 products in tf32"),
    ("hardware", "use_cudnn_flags", _switch("cudnn_benchmark"), "cuDNN tries its kernels"),
]


def children(genome, device):
    """(level, mutation, child) for everything that may be tried next."""
    for level, name, make, _ in MUTATIONS:
        for child in make(genome, device):
            if child != genome:
                yield level, name, child
