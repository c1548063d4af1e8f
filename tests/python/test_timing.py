"""The intervals of _timing.py, in simulations."""

import math
import random

import pytest

torch = pytest.importorskip("torch")
from attune import _timing, evolve_module  # noqa: E402


def sittings(dice, speedup, process=0.03, pair=0.05, count=5, rounds=9):
    """Samples of two programs: each pair of processes has an effect that lasts as long as it."""
    slower, faster = [], []
    for _ in range(count):
        effect = math.exp(dice.gauss(0, process))
        slower.append([speedup * effect * math.exp(dice.gauss(0, pair)) for _ in range(rounds)])
        faster.append([1.0] * rounds)
    return slower, faster


def test_student_is_what_tables_say():
    for p, freedom, value in [
        (0.025, 1, 12.706),
        (0.025, 2, 4.303),
        (0.025, 4, 2.776),
        (0.0125, 4, 3.495),
        (0.05, 8, 1.860),
        (0.005, 30, 2.750),
    ]:
        assert _timing.student(p, freedom) == pytest.approx(value, abs=1e-3)


def test_an_interval_over_sittings_holds_the_truth():
    dice, runs = random.Random(1), 400
    held = pooled = 0
    for _ in range(runs):
        slower, faster = sittings(dice, 1.1)
        _, low, high = _timing.over_sittings(slower, faster)
        held += low <= 1.1 <= high
        _, low, high = _timing.ratio(slower[0], faster[0], draws=200)
        pooled += low <= 1.1 <= high
    assert 0.92 <= held / runs <= 0.98
    assert pooled / runs < 0.8  # what one pair of processes says is no such interval


def test_a_run_confirms_what_is_no_faster_in_few_cases():
    dice, runs, wrong = random.Random(2), 300, 0
    for _ in range(runs):
        for n in range(3):  # incumbents that are tried one after another
            error = evolve_module.ERROR / 2 ** (n + 1)
            slower, faster = sittings(dice, 1.0)
            if _timing.over_sittings(slower, faster, confidence=1 - 2 * error)[1] > 1:
                wrong += 1
                break
    assert wrong / runs <= 0.05
