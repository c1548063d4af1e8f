"""Candidates of attune.evolve_module: genes, operators that change them, and their source text.

A candidate is a dict of genes. templates/attention_module.txt with its slots filled is its file.
The facts are those of _module_reading.py, with the device in addition.
"""

import shutil
from dataclasses import dataclass, field
from os import environ
from pathlib import Path
from string import Template

TEMPLATE = Path(__file__).parent / "templates" / "attention_module.txt"
LEVELS = ("algorithm", "implementation", "hardware")


@dataclass
class Operator:
    """Sets genes. device: where alone it is tried; "" is everywhere."""

    name: str
    level: str
    genes: dict = field(default_factory=dict)
    device: str = ""


def _backend(name, which, device=""):
    return Operator(name, "hardware", {"attention": "sdpa", "backend": which}, device)


OPERATORS = [
    Operator("written_out", "algorithm", {"attention": "written_out"}),
    Operator("query_blocks", "algorithm", {"attention": "query_blocks"}),
    Operator("sdpa", "algorithm", {"attention": "sdpa", "backend": ""}),
    Operator("attune", "algorithm", {"attention": "attune"}),
    Operator("scale_query", "algorithm", {"scale": "query"}),
    Operator("scale_scores", "algorithm", {"scale": "scores"}),
    Operator("fused_qkv", "implementation", {"projection": "fused"}),
    Operator("separate_qkv", "implementation", {"projection": "separate"}),
    Operator("head_views", "implementation", {"layout": "views"}),
    Operator("contiguous_heads", "implementation", {"layout": "contiguous"}),
    Operator("heads_inside", "implementation", {"layout": "inside"}),
    Operator("compile", "implementation", {"compile": "default"}),
    Operator("eager", "implementation", {"compile": ""}),
    _backend("sdpa_flash", "FLASH_ATTENTION"),
    _backend("sdpa_math", "MATH"),
    _backend("sdpa_efficient", "EFFICIENT_ATTENTION", "cuda"),
    _backend("sdpa_cudnn", "CUDNN_ATTENTION", "cuda"),
    Operator("block_64", "hardware", {"block": 64}),
    Operator("block_128", "hardware", {"block": 128}),
    Operator("block_256", "hardware", {"block": 256}),
    Operator("split_float32", "hardware", {"linear": "split"}, "cuda"),
    Operator("torch_linear", "hardware", {"linear": "torch"}, "cuda"),
    Operator("compile_max", "hardware", {"compile": "max-autotune-no-cudagraphs"}),
    Operator("compile_graphs", "hardware", {"compile": "reduce-overhead"}, "cuda"),
]


def available(facts):
    """(the operators for this module and device, {name: why not} of the others)"""
    found, skipped = [], {}
    for operator in OPERATORS:
        why = _why_not(operator, facts)
        if why:
            skipped[operator.name] = why
        else:
            found.append(operator)
    return found, skipped


def _why_not(operator, facts):
    if operator.device not in ("", facts["device"]):
        return f"only for {operator.device}"
    if operator.genes.get("compile"):
        return _no_compiler(facts["device"])
    projection = operator.genes.get("projection")
    if projection == "separate" and facts["interleaved"]:
        return "q, k and v of a head are neighbours in the weight: no row block is one of them"
    biases = {bias for name, bias in facts["linears"] if name in facts["qkv"]}
    if projection == "fused" and len(biases) > 1:
        return "not all of q, k and v have a bias"
    return ""


def _no_compiler(device):
    """torch.compile needs a C++ compiler on the CPU, and Triton on a GPU."""
    if device == "cuda":
        from torch.utils._triton import has_triton

        return "" if has_triton() else "torch.compile needs Triton, which is not here"
    if any(map(shutil.which, (environ.get("CXX", ""), "g++", "clang++", "c++"))):
        return ""
    return "torch.compile needs a C++ compiler, which is not here"


def first(facts):
    """torch's SDPA between the projections as they are: what fitness is measured against."""
    return {
        "attention": "sdpa",
        "backend": "",
        "projection": facts["storage"],
        "layout": "views",
        "scale": "scores",
        "block": 128,
        "linear": "torch",
        "compile": "",
    }


def canonical(genes, facts):
    """Genes that have no effect beside the others have their first value."""
    genes, plain = dict(genes), first(facts)
    dead = []
    if genes["attention"] != "sdpa":
        dead.append("backend")
    if genes["attention"] not in ("written_out", "query_blocks"):
        dead.append("scale")
    if genes["attention"] != "query_blocks":
        dead.append("block")
    else:
        dead.append("compile")  # a loop whose length depends on the input
    if genes["layout"] == "inside" and genes["attention"] != "attune":
        dead.append("layout")
    if genes["projection"] != facts["storage"]:
        dead.append("linear")
    return {**genes, **{gene: plain[gene] for gene in dead}}


def title(genes, facts):
    """The names of what differs from the module with torch's SDPA, and of the attention."""
    plain = first(facts)
    names = []
    if genes["projection"] != plain["projection"]:
        names.append(f"{genes['projection']}_qkv")
    names.append(genes["attention"])
    for operator in OPERATORS:
        for gene, value in operator.genes.items():
            if gene in ("attention", "projection") or genes[gene] != value or value == plain[gene]:
                continue
            if gene == "backend":
                names[names.index("sdpa")] = operator.name
            else:
                names.append(operator.name)
    return "+".join(names)


# --- the slots ---


def _scores(q, k, genes):
    if genes["scale"] == "query":
        return f"scores = ({q} * q.shape[-1] ** -0.5) @ {k}.transpose(-2, -1)"
    return f"scores = {q} @ {k}.transpose(-2, -1) * q.shape[-1] ** -0.5"


def _probabilities(facts):
    if facts["attn_pdrop"]:
        dropped = "F.dropout(scores.softmax(dim=-1), self.attn_pdrop, self.training)"
        return f"probabilities = {dropped}"
    return "probabilities = scores.softmax(dim=-1)"


def _written_out(genes, facts):
    lines = [_scores("q", "k", genes)]
    if facts["causal"]:
        lines.append("keep = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()")
        lines.append("scores = scores.masked_fill(~keep, -torch.inf)")
    return [*lines, _probabilities(facts), "out = probabilities @ v"]


def _query_blocks(genes, facts):
    block, stop = genes["block"], "stop" if facts["causal"] else "length"
    lines = [
        "blocks = []",
        f"for start in range(0, length, {block}):",
        f"    stop = min(start + {block}, length)",
        "    " + _scores("q[:, :, start:stop]", f"k[:, :, :{stop}]", genes),
    ]
    if facts["causal"]:
        lines += [
            "    rows = torch.arange(start, stop, device=x.device)[:, None]",
            "    keep = torch.arange(stop, device=x.device) <= rows",
            "    scores = scores.masked_fill(~keep, -torch.inf)",
        ]
    lines.append(f"    {_probabilities(facts)}")
    lines.append(f"    blocks.append(probabilities @ v[:, :, :{stop}])")
    return [*lines, "out = torch.cat(blocks, dim=2)"]


def _call(function, facts, *more):
    arguments = ["q", "k", "v", *more]
    lines = []
    if facts["attn_pdrop"]:
        lines.append("dropout_p = self.attn_pdrop if self.training else 0.0")
        arguments.append("dropout_p=dropout_p")
    if facts["causal"]:
        arguments.append("is_causal=True")
    return [*lines, f"out = {function}({', '.join(arguments)})"]


def _sdpa(genes, facts):
    *lines, call = _call("F.scaled_dot_product_attention", facts)
    if not genes["backend"]:
        return [*lines, call]
    return [*lines, f"with sdpa_kernel(SDPBackend.{genes['backend']}):", f"    {call}"]


def _attune(genes, facts):
    if genes["layout"] == "inside":
        return _call("attune.attention", facts, 'layout="bshd"')
    return _call("attune.scaled_dot_product_attention", facts)


ATTENTION = {
    "written_out": _written_out,
    "query_blocks": _query_blocks,
    "sdpa": _sdpa,
    "attune": _attune,
}


def _projection(genes, facts):
    names, fused = facts["qkv"], genes["projection"] == "fused"
    bias = dict(facts["linears"])[names[0]]
    order = ", ".join(facts["order"])
    reshape = "t.view(heads)"
    if facts["interleaved"]:
        parts = f"self.{names[0]}(x).view(batch, length, self.n_head, 3, -1)"
        lines, reshape = [f"{order} = {parts}.unbind(3)"], "t"
    elif facts["storage"] == "fused" and fused:
        lines = [f"{order} = self.{names[0]}(x).split(width, dim=2)"]
    elif facts["storage"] == "fused":
        weight = f"self.{names[0]}.weight.split(width)"
        biases = f"self.{names[0]}.bias.split(width)"
        lines = [f"{order} = (F.linear(x, weight) for weight in {weight})"]
        if bias:
            pairs = f"weights = zip({weight}, {biases}, strict=True)"
            lines = [pairs, f"{order} = (F.linear(x, weight, bias) for weight, bias in weights)"]
    elif fused:
        lines = [f"linears = {', '.join(f'self.{name}' for name in names)}"]
        lines.append("weight = torch.cat([linear.weight for linear in linears])")
        if bias:
            lines.append("bias = torch.cat([linear.bias for linear in linears])")
        given = "x, weight, bias" if bias else "x, weight"
        lines.append(f"q, k, v = F.linear({given}).split(width, dim=2)")
    else:
        lines = [f"q, k, v = {', '.join(f'self.{name}(x)' for name in names)}"]
    if genes["layout"] != "inside":
        reshape += ".transpose(1, 2)"
    if genes["layout"] == "contiguous":
        reshape += ".contiguous()"
    if not facts["interleaved"]:
        lines.append("heads = batch, length, self.n_head, width // self.n_head")
    if reshape != "t":
        lines.append(f"q, k, v = ({reshape} for t in (q, k, v))")
    return lines


def _init(genes, facts):
    linear = "Linear" if genes["linear"] == "split" else "nn.Linear"
    lines = ["self.n_head = n_head"]
    lines += [f"self.{p} = {p}" for p in ("attn_pdrop", "resid_pdrop") if facts[p]]
    for name, bias in facts["linears"]:
        columns = "3 * n_embd" if facts["storage"] == "fused" and name in facts["qkv"] else "n_embd"
        lines.append(f"self.{name} = {linear}(n_embd, {columns}{'' if bias else ', bias=False'})")
    if facts["buffers"]:
        lines.append("# In the state dict only: forward does not read it.")
    for name, shape, dtype in facts["buffers"]:
        length, sizes = shape[-1], ", ".join(map(str, shape))
        lines.append(f"lower = torch.ones({length}, {length}, dtype={dtype}).tril()")
        lines.append(f'self.register_buffer("{name}", lower.view({sizes}))')
    return lines


def _output(genes, facts):
    turn = "" if genes["layout"] == "inside" else ".transpose(1, 2)"
    lines = [f"out = self.{facts['result']}(out{turn}.reshape(batch, length, width))"]
    if facts["resid_pdrop"]:
        return [*lines, "return F.dropout(out, self.resid_pdrop, self.training)"]
    return [lines[0].replace("out = ", "return ", 1)]


def _imports(body):
    """Those that the text needs."""
    ours = [("import attune", "attune."), ("from attune.linear import Linear", " Linear(")]
    found = [line for line, word in ours if word in body] + ["import torch", "from torch import nn"]
    if "torch." not in body:
        found.remove("import torch")
    if "sdpa_kernel" in body:
        found.append("from torch.nn.attention import SDPBackend, sdpa_kernel")
    if "F." in body:
        found.append("from torch.nn import functional as F")
    order = ["import attune", "import torch"]
    return sorted(found, key=lambda line: (line not in order, line))


def source(genes, facts, module):
    """The file of a candidate."""
    if genes["compile"] in ("", "default"):
        decorator = ["@torch.compile(dynamic=True)"] if genes["compile"] else []
    else:
        decorator = [f'@torch.compile(dynamic=True, mode="{genes["compile"]}")']
    slots = {
        "init": _init(genes, facts),
        "decorator": decorator,
        "projection": _projection(genes, facts),
        "attention": ATTENTION[genes["attention"]](genes, facts),
        "output": _output(genes, facts),
    }
    body = "\n".join(line for lines in slots.values() for line in lines)
    parameters = [p if default is None else f"{p}={default}" for p, default in facts["parameters"]]
    causal = "Causal multi-head" if facts["causal"] else "Multi-head"
    if facts["own_weights"]:
        weights = "Its first weights are nn.Linear's own, not that file's: load a state dict."
    else:
        weights = "By the same seed it also begins with the same weights."
    slots.update(
        summary=[f"{causal} self-attention: {title(genes, facts)}."],
        module=[Path(module).name],
        weights=[weights],
        imports=_imports(body),
        name=["ModelNew" if facts["kernelbench"] else "Model"],
        parameters=[", ".join(parameters)],
    )
    lines = []
    for line in TEMPLATE.read_text().splitlines():
        if line.strip() in (f"${slot}" for slot in slots):  # a slot of whole lines
            indent = line[: len(line) - len(line.lstrip())]
            lines += [indent + one for one in slots[line.strip()[1:]]]
        else:
            lines.append(Template(line).substitute({k: " ".join(v) for k, v in slots.items()}))
    return "\n".join(lines) + "\n"
