"""The judge of KernelBench's pairs: a problem (Model, get_inputs, get_init_inputs) and a ModelNew.

It is the judge of _judge.py with other inputs: the problem's own get_inputs draws them, in the
problem's process, by a seed of the judge, for every call anew. They and the results can be any
tensors. Shapes are the problem's; no others are tried.
"""

import os

import torch

from . import _packing
from ._judge import BASELINE_LIMIT, EXACTLY, Judge, Refused, Unusable

TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 1e-2}  # KernelBench's, absolute and relative
OTHERWISE = 1e-4
MORE = 1 << 20  # bytes that a result may take beyond twice the reference's


class PairJudge(Judge):
    RUN = "run_problem"

    def __init__(self, options):
        super().__init__(options)
        self.tolerance = None  # the largest that was allowed so far
        self.exact = True  # can the problem be run in float64?
        self.filled = {}  # bytes of each process's last result
        self.first = None  # the first inputs and the first result
        self.constant = True  # so far: the result
        self.checking = False

    def _memory(self):
        """It takes room only where it is written."""
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2

    def fresh_weights(self):
        seed = {"seed": self.dice.getrandbits(63)}
        self._make("make_problem", seed, "make_solution", seed)

    def words(self):
        """What the verdict says beside the numbers."""
        found = {"tolerance": self.tolerance}
        if not self.exact:
            found["no_float64"] = "the reference cannot be run in it"
        return found

    def hidden_cases(self):
        return [()] * self.options.trials

    def call(self, *_, timed=False, beside=False):
        return self._turns(None, f"with inputs {self.draws}", {}, timed, beside)

    def _draw(self, shape, kinds):
        self.reseed()
        what = f"the get_inputs of {self.options.baseline} cannot be called"
        seeds = [self.dice.getrandbits(63) for _ in range(2)]
        size = self._copy(what, "draw", "while it drew inputs", BASELINE_LIMIT, seed=seeds[0])
        x = self.inputs.bytes[:size].clone()
        if self.first is None:
            self.first = [x, None]
        elif self.first[0] is not None:
            before, now = (_packing.tensors(_packing.unpack(b)) for b in (self.first[0], x))
            if all(a.equal(b) for a, b in zip(before, now, strict=False)):
                raise Unusable(
                    f"{self.options.baseline}: its get_inputs gives the same numbers each time:"
                    " a result that was remembered would look right"
                )
            self.first[0] = None
        return x, {"seed": seeds[1]}

    def _blank(self, process, shape):
        process.outputs.bytes[: self.filled.get(process, 64)] = 255  # NaN, and no header

    def _fetched(self, process, shape, where, request, dtype=None):
        size, most = request["sum"], len(process.outputs.bytes)
        if process is self.candidate:  # the reference was called before: how large is a result?
            most = min(most, 2 * self.filled[self.baseline] + MORE)
        if not 0 < size <= most:
            raise Refused(f"its result has a wrong shape or type {where}")
        self.filled[process] = max(size, self.filled.get(process, 0))
        result = process.outputs.bytes[:size].clone()
        process.look_still()
        return result

    def _compare(self, where, kinds, request, expected, got):
        text = _packing.header(expected)
        if len(got) != len(expected) or got[: len(text)].numpy().tobytes() != text:
            raise Refused(f"its result has a wrong shape or type {where}")
        expected, got = (_packing.tensors(_packing.unpack(one)) for one in (expected, got))
        self._vary(expected)
        exact = self._exact(where, request) if self.checking else None
        self.compared = True
        for n, (right, mine) in enumerate(zip(expected, got, strict=True)):
            self._one(where, right, mine, exact and exact[n])

    def _exact(self, where, request):
        """The problem's result in float64; None where it cannot compute that."""
        if not self.exact:
            return None
        try:
            request = {**request, "exact": True}
            _, size = self.baseline.ask(self.RUN, where, BASELINE_LIMIT, **request)
        except Refused:
            self.exact = False
            return None
        return _packing.tensors(
            _packing.unpack(self._fetched(self.baseline, None, where, {"sum": size}))
        )

    def _vary(self, expected):
        """Does the result depend on the inputs, by more than the tolerance?"""
        if self.first[1] is None:
            self.first[1] = expected
        elif self.constant:
            pairs = zip(self.first[1], expected, strict=True)
            self.constant = all(a.shape == b.shape and self._agree(a, b) for a, b in pairs)

    def _agree(self, a, b):
        if not (a.is_floating_point() or a.is_complex()):
            return a.equal(b)
        allowed = self._allowed(a)
        a, b = _real(a), _real(b)
        return torch.allclose(a, b, rtol=allowed, atol=allowed, equal_nan=True)

    def _allowed(self, result):
        """The tolerance for a tensor of this type."""
        given = self.options.tolerance
        return TOLERANCE.get(result.dtype, OTHERWISE) if given is None else given

    def _one(self, where, right, mine, exact):
        """One tensor of the result."""
        if not (right.is_floating_point() or right.is_complex()):
            if not mine.equal(right):
                raise Refused(f"wrong result {where}: not the reference's {right.dtype}")
            return
        allowed = self._allowed(right)
        self.tolerance = max(allowed, self.tolerance or 0.0)
        right, mine = _real(right), _real(mine)
        finite = right.isfinite()
        others = mine[~finite], right[~finite]  # an inf where the reference has it is right
        if not mine.isfinite().equal(finite) or not torch.allclose(*others, equal_nan=True):
            raise Refused(f"wrong result {where}: NaN, infinite or not written")
        right, mine = right[finite], mine[finite]
        difference = (mine - right).abs()
        if not difference.numel():
            return
        self._note("max_diff", difference.amax().view(1))
        over = difference - allowed * (1 + right.abs())
        if (over > 0).any():
            worst = difference[over.argmax()].item()
            raise Refused(f"wrong result {where}: off by {worst:.1e} from the reference")
        exact = None if exact is None else _real(exact)
        if exact is None or exact.shape != finite.shape:
            return
        exact = exact[finite]
        known = exact.isfinite()  # where float64 overflows, or float32 did, it says nothing
        if not known.any():
            return
        right, mine, exact = right[known], mine[known], exact[known]
        its, own = (mine - exact).abs(), (right - exact).abs()
        self._note("float64_diff", its.amax().view(1))
        self._note("baseline_float64_diff", own.amax().view(1))
        limit = torch.clamp(allowed * (1 + exact.abs()), min=EXACTLY * own.amax().item())
        if not (its <= limit).all():
            worst = its[(its - limit).argmax()].item()
            raise Refused(f"wrong result {where}: off by {worst:.1e} from float64")

    def check(self):
        self.checking = True
        super().check()
        self.checking = False

    def time(self):
        samples = super().time()
        if self.constant:
            raise Unusable(
                f"the result of {self.options.baseline} hardly depends on its inputs: a constant"
                " would look right. A smaller --tolerance may tell them apart"
            )
        return samples


def _real(tensor):
    """Its numbers in float64; complex ones as pairs."""
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).double()
