"""What a torch module computes, found by calling it: is it multi-head self-attention?

This runs in a process of the judge (_judge_child.py), on a small Model. The linear layers and the
buffers are read from the Model. Which layer gives q, k and v, in which order, and whether the
attention is causal is found by trial: every possibility is computed in float64 and compared with
what the Model returns. How the Model's code is written does not matter.
"""

import inspect
import itertools
import math

import torch
from torch import nn

KNOWN = ("n_embd", "n_head", "attn_pdrop", "resid_pdrop", "max_seqlen")
SMALL = {"n_embd": 24, "n_head": 3, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "max_seqlen": 10}
AGREES = 1e-5  # a wrong possibility is off by more than a hundredth
UNDERSTOOD = (
    "The operators understand multi-head self-attention from [batch, seq, n_embd] to the"
    " same shape: Model(n_embd, n_head, attn_pdrop, resid_pdrop, max_seqlen), with one nn.Linear"
    " for q, k and v or one for each, another one for the result, and a causal mask or none"
)


class NotUnderstood(Exception):
    """The module is something else; the message says at what that was seen."""


def read(module, kind):
    """A dict of facts. kind: the class Model of the module."""
    facts = {"parameters": _parameters(kind), **_sizes(module, kind)}
    names = [name for name, _ in facts["parameters"]]

    def make(**sizes):
        torch.manual_seed(0)
        return kind(**{k: v for k, v in {**SMALL, **sizes}.items() if k in names}).double()

    model = make().eval()
    linears = _linears(model)
    facts["own_weights"] = _draws_its_own(linears)
    facts["linears"] = [[n, m.bias is not None] for n, m in linears.items()]
    facts["buffers"] = _buffers(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_().mul_(0.4)
        x = torch.randn(2, 7, SMALL["n_embd"], dtype=torch.float64)
        expected = model(x)
        if not isinstance(expected, torch.Tensor) or expected.shape != x.shape:
            raise NotUnderstood("it does not return one tensor of its input's shape")
        facts.update(_roles(linears, x, expected))
        facts.update(_dropouts(make, names, model, x, expected))
    return facts


def _parameters(kind):
    found = []
    for name, one in inspect.signature(kind).parameters.items():
        if name not in KNOWN or one.kind is not one.POSITIONAL_OR_KEYWORD:
            raise NotUnderstood(f"its Model takes '{name}'{_way(one)}")
        given = one.default is not one.empty
        if given and not (isinstance(one.default, (int, float)) and math.isfinite(one.default)):
            raise NotUnderstood(f"the default of '{name}' is no number")
        found.append([name, repr(one.default) if given else None])
    for name in ("n_embd", "n_head"):
        if name not in (known for known, _ in found):
            raise NotUnderstood(f"its Model does not take '{name}'")
    return found


def _way(parameter):
    ways = {parameter.KEYWORD_ONLY: " by keyword only", parameter.POSITIONAL_ONLY: " by place only"}
    return ways.get(parameter.kind, "")


def _sizes(module, kind):
    """What a KernelBench file says of its sizes."""
    if not (hasattr(module, "get_inputs") and hasattr(module, "get_init_inputs")):
        return {"kernelbench": False, "sizes": {}}
    bound = inspect.signature(kind).bind(*module.get_init_inputs())
    bound.apply_defaults()
    inputs = module.get_inputs()
    if len(inputs) != 1 or not isinstance(inputs[0], torch.Tensor) or inputs[0].ndim != 3:
        raise NotUnderstood("its get_inputs does not return one tensor of [batch, seq, n_embd]")
    batch, seq, _ = inputs[0].shape
    sizes = {k: v for k, v in bound.arguments.items() if k in ("n_embd", "n_head", "max_seqlen")}
    return {"kernelbench": True, "sizes": {"max_seqlen": seq, **sizes, "batch": batch, "seq": seq}}


def _linears(model):
    linears = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    theirs = {f"{n}.{p}" for n, m in linears.items() for p, _ in m.named_parameters()}
    others = [n for n, _ in model.named_parameters() if n not in theirs]
    if others:
        raise NotUnderstood(f"it has parameters that no nn.Linear has: {', '.join(others)}")
    nested = [n for n in linears if not n.isidentifier()]
    if nested:
        raise NotUnderstood(f"its nn.Linear is no plain attribute: {', '.join(nested)}")
    width = SMALL["n_embd"]
    shapes = sorted(tuple(m.weight.shape) for m in linears.values())
    if shapes not in ([(width, width), (3 * width, width)], [(width, width)] * 4):
        told = ", ".join(f"{n} {tuple(m.weight.shape)}" for n, m in linears.items()) or "none"
        raise NotUnderstood(f"its nn.Linear layers at n_embd {width} are {told}")
    return linears


def _draws_its_own(linears):
    """Do the first weights differ from those of nn.Linear layers by the same seed?"""
    torch.manual_seed(0)
    for one in linears.values():
        plain = nn.Linear(one.in_features, one.out_features, bias=one.bias is not None).double()
        if not all(map(torch.equal, plain.parameters(), one.parameters())):
            return True
    return False


def _buffers(model):
    """[name, shape, dtype] of the masks that are in the state dict."""
    parameters = dict(model.named_parameters())
    found = []
    for name, value in model.state_dict().items():
        if name in parameters:
            continue
        length = value.shape[-1] if value.ndim else 0
        lower = torch.ones(length, length, dtype=torch.bool).tril()
        if (
            "." in name
            or value.numel() != length**2
            or not (value.view(-1) == lower.view(-1)).all()
        ):
            raise NotUnderstood(f"its buffer '{name}' is no lower triangle of ones")
        shape = ["max_seqlen" if n == SMALL["max_seqlen"] else n for n in value.shape]
        dtype = torch.float32 if value.is_floating_point() else value.dtype
        found.append([name, shape, str(dtype)])
    return found


def _attention(q, k, v, causal):
    heads = SMALL["n_head"]
    q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k, v))
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if causal:
        keep = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~keep, -math.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


def _possibilities(linears, x):
    """(facts, q, k, v, the layer of the result)"""
    if len(linears) == 4:
        for names in itertools.permutations(linears):
            q, k, v = (linears[name](x) for name in names[:3])
            facts = {"storage": "separate", "qkv": list(names[:3]), "result": names[3]}
            yield facts, q, k, v, linears[names[3]]
        return
    last, first = sorted(linears, key=lambda name: linears[name].out_features)
    every = linears[first](x)
    for interleaved in (False, True):
        if interleaved:  # [heads, 3, d]
            parts = every.unflatten(-1, (SMALL["n_head"], 3, -1)).unbind(3)
            parts = [part.flatten(2) for part in parts]
        else:  # [3, heads, d]
            parts = every.chunk(3, -1)
        for order in itertools.permutations("qkv"):
            q, k, v = (parts[order.index(name)] for name in "qkv")
            facts = {"storage": "fused", "qkv": [first], "result": last}
            facts.update(order=list(order), interleaved=interleaved)
            yield facts, q, k, v, linears[last]


def _roles(linears, x, expected):
    best = math.inf
    for facts, q, k, v, last in _possibilities(linears, x):
        for causal in (True, False):
            off = (last(_attention(q, k, v, causal)) - expected).abs().max().item()
            if off < AGREES:
                return {"order": list("qkv"), "interleaved": False, **facts, "causal": causal}
            best = min(best, off)
    raise NotUnderstood(
        f"it computes something else with its nn.Linear layers: the nearest is off by {best:.1e}"
    )


def _dropouts(make, names, model, x, expected):
    """Which of the two the Model applies while it trains."""

    def changes(**sizes):
        other = make(**sizes)
        other.load_state_dict(model.state_dict())
        return not other.train()(x).allclose(expected, atol=1e-4)

    if changes():
        raise NotUnderstood("it trains with a dropout that is neither attn_pdrop nor resid_pdrop")
    return {p: p in names and changes(**{p: 0.5}) for p in ("attn_pdrop", "resid_pdrop")}
