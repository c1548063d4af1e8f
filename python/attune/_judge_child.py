"""The process that runs one module for attune.evaluate, and knows nothing of what is expected.

_sandbox.py starts it. A request is a line of JSON with a nonce, a reply `nonce word number text`.
Tensors never go through the pipe: inputs lie in memory that is read-only here, results go to a
memory of their own. The judge (_judge.py) has the clock, draws the inputs and compares; whatever a
module does to this process it does to itself.

On CUDA both processes draw their inputs on the device, by the seed that the request names, as
copying them would take longer than the module. The reply carries a checksum of the result, keyed
by the request; the result itself is fetched afterwards and must have that checksum.
"""

import copy
import importlib.util
import inspect
import json
import math
import mmap
import os
import sys
import warnings
from pathlib import Path

import torch

from . import _judge_words, _packing

TEXT = 500  # characters of a failure that go to the judge, which shows less
LARGE, TINY = 20.0, 1e-3


class WrongResult(Exception):
    """The module returned something that is no result."""


def load_model(path, sizes, device, seed=0):
    """The Model of a file, in eval mode: sizes are n_embd, n_head and max_seqlen."""
    return make_model(import_module(path), sizes, device, seed)


def import_module(path):
    name = f"attune_module_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # as an import does: dataclasses and compilers look there
    spec.loader.exec_module(module)
    return module


def model_class(module):
    """Model, or KernelBench's name for a solution where there is no Model."""
    found = getattr(module, "Model", None) or getattr(module, "ModelNew", None)
    if found is None:
        raise AttributeError("it defines no Model")
    return found


def make_model(module, sizes, device, seed):
    kind = model_class(module)
    wanted = {**sizes, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
    known = inspect.signature(kind).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in known.values())
    torch.manual_seed(seed)
    model = kind(**{k: v for k, v in wanted.items() if takes_all or k in known})
    return model.to(device).eval()


def set_weights(model, weights):
    """Every parameter of the model must be among the weights."""
    missing = [name for name, _ in model.named_parameters() if name not in weights]
    if missing:
        raise KeyError(f"the baseline has no parameters {', '.join(missing)}")
    own = model.state_dict()
    model.load_state_dict({k: v for k, v in weights.items() if k in own}, strict=False)


def shape_entries(x, kinds):
    """Makes the entries of a batch of normal numbers what `kinds` says: {entry: kind}."""
    for entry, kind in kinds.items():
        row = x[int(entry)]
        if kind == "one-hot":
            hot = row.argmax(-1, keepdim=True)
            row.zero_().scatter_(-1, hot, math.sqrt(row.shape[-1]))
        else:
            row.mul_({"large": LARGE, "tiny": TINY}[kind])


def checksum(result, key):
    """Of all bits and their places, modulo 2^64; the same on every device."""
    bits = result.contiguous().view(torch.int32).flatten(0, -2).long()
    rows, columns = (torch.arange(n, device=bits.device) for n in bits.shape)
    mixed = columns * 0x9E3779B1 + key
    sums = (bits * (mixed * (mixed + 1))).sum(-1)
    return int((sums * ((rows * 2 + 1) * (rows + key))).sum())


class Server:
    def __init__(self, device, inputs, outputs):
        self.device = device
        self.inputs, self.outputs = inputs, outputs  # bytes, as tensors
        self.module = self.model = self.exact = self.result = None
        self.path = ""

    def open(self, path):
        """Imports the module."""
        self.path = path
        self.module = import_module(path)
        return 0

    def read(self):
        """What the module computes, for attune.evolve_module: a block, whose size is
        returned."""
        from . import _module_reading

        try:
            facts = _module_reading.read(self.module, model_class(self.module))
        except _module_reading.NotUnderstood as error:
            facts = {"why": str(error)}
        return _packing.pack(facts, self.outputs)

    def make(self, sizes, seed):
        """A model with weights of its own, and these as one block: returns its size."""
        self.model = make_model(self.module, sizes, self.device, seed)
        self.exact = None
        return _packing.pack(self.model.state_dict(), self.outputs)

    def load(self, sizes):
        """A fresh model with the weights of the block that lies in the inputs."""
        self.model = make_model(self.module, sizes, self.device, seed=0)
        set_weights(self.model, _packing.unpack(self.inputs))
        return 0

    def nothing(self):
        """For the time of a request."""
        return 0

    def run(self, shape, kinds=None, seed=0, key=0, entries=None, exact=False):
        """One call. exact: in float64."""
        x = self._input(shape, kinds, seed)
        if entries is not None:
            x = x[entries]
        if exact:
            self.exact = self.exact or copy.deepcopy(self.model).double()
            x = x.double()
        model = self.exact if exact else self.model
        with torch.no_grad():
            self.result = model(x)
        if exact:
            self.result = self.result.double()
        self._look_at(self.result, x)
        if self.device == "cpu":
            return self.fetch()
        if x.is_cuda:
            torch.cuda.synchronize(self.device)
        return 0 if exact else checksum(self.result, key)

    def fetch(self):
        """The last result into the shared memory."""
        self.outputs[: self.result.nbytes].view(self.result.dtype).view(self.result.shape).copy_(
            self.result
        )
        self.result = None
        return 0

    def _input(self, shape, kinds, seed):
        if self.device == "cpu":
            return self.inputs[: 4 * math.prod(shape)].view(torch.float32).view(shape)
        dice = torch.Generator(self.device).manual_seed(seed)
        x = torch.randn(shape, device=self.device, generator=dice)
        shape_entries(x, kinds or {})
        return x

    def _look_at(self, result, x):
        if not isinstance(result, torch.Tensor):
            raise WrongResult(f"it gives a {type(result).__name__}, not a tensor")
        got = tuple(result.shape), result.dtype
        if got != (tuple(x.shape), x.dtype):
            raise WrongResult(f"it gives {got[0]} of {got[1]}, not {tuple(x.shape)} of {x.dtype}")

    # --- KernelBench's files: a problem has Model, get_inputs and get_init_inputs ---

    def make_problem(self, seed):
        """The problem's Model. Returns the size of a block: what it was made with, and weights."""
        for name in ("Model", "get_inputs", "get_init_inputs"):
            if not hasattr(self.module, name):
                raise AttributeError(f"it defines no {name}")
        given = list(self.module.get_init_inputs())
        torch.manual_seed(seed)
        self.model, self.exact = self.module.Model(*given).to(self.device), None
        return _packing.pack({"given": given, "weights": self.model.state_dict()}, self.outputs)

    def make_solution(self, seed):
        """ModelNew, made by the same seed as Model; with its weights where all names agree."""
        if not hasattr(self.module, "ModelNew"):
            raise AttributeError("it defines no ModelNew")
        block = _packing.changed(_packing.unpack(self.inputs), torch.Tensor.clone)
        torch.manual_seed(seed)
        self.model = self.module.ModelNew(*block["given"]).to(self.device)
        own, weights = self.model.state_dict(), block["weights"]
        if {k: v.shape for k, v in own.items()} == {k: v.shape for k, v in weights.items()}:
            self.model.load_state_dict(weights)
        return 0

    def draw(self, seed):
        """The problem's inputs by a seed, as a block."""
        torch.manual_seed(seed)
        return _packing.pack(list(self.module.get_inputs()), self.outputs)

    def run_problem(self, seed, exact=False):
        """One call, from a block to a block. On a GPU both are copied."""
        inputs = _packing.changed(
            _packing.unpack(self.inputs), self._exactly if exact else self._here
        )
        if exact:
            self.exact = self.exact or copy.deepcopy(self.model).double()
        torch.default_generator.manual_seed(seed)  # torch.manual_seed takes 0.1 ms
        if self.device != "cpu":
            torch.cuda.manual_seed(seed)
        with torch.no_grad():
            self.result = (self.exact if exact else self.model)(*inputs)
        if not _packing.tensors(self.result):
            raise WrongResult(f"it gives a {type(self.result).__name__}, without a tensor")
        return _packing.pack(self.result, self.outputs)

    def _here(self, tensor):
        return tensor.to(self.device)

    def _exactly(self, tensor):
        tensor = self._here(tensor)
        return tensor.double() if tensor.is_floating_point() else tensor


def serve(device, requests, replies, inputs, outputs):
    def mapped(descriptor, protection):
        size = os.fstat(descriptor).st_size
        memory = mmap.mmap(descriptor, size, prot=protection)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that torch cannot know of read-only memory
            return torch.frombuffer(memory, dtype=torch.uint8)

    server = Server(
        device, mapped(inputs, mmap.PROT_READ), mapped(outputs, mmap.PROT_READ | mmap.PROT_WRITE)
    )
    for line in os.fdopen(requests, "rb"):
        request = json.loads(line)
        nonce, name = request.pop("nonce"), request.pop("do")
        text = ""
        try:
            word, number = "ok", getattr(server, name)(**request)
        except BaseException as error:  # sys.exit too: the module's failure, and not ours
            word, number = "wrong" if isinstance(error, WrongResult) else "raised", 0
            try:
                text = _judge_words.told(error, server.path)
            except Exception:  # its __str__ is the module's too
                text = "RuntimeError||"
            text = "".join(c if " " <= c <= "~" else "?" for c in text[:TEXT])
        os.write(replies, f"{nonce} {word} {number} {text}\n".encode())
