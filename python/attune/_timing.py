"""Timing on a machine that others use too: competitors take turns, ratios are paired. ratio() is of
one pair of processes, and knows nothing of what another pair would give; over_sittings() does."""

import functools
import math
import random
import statistics
import time
from contextlib import nullcontext

import torch

_SETTLE = 0.003  # seconds: the threads of whoever was timed before stop spinning


def _seconds(call, repeats, device, context):
    """Of `repeats` calls, from the first to when the last is done."""
    time.sleep(_SETTLE)
    with context():
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        begin = time.perf_counter()
        for _ in range(repeats):
            call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - begin


def take_turns(
    calls, device, rounds=15, sample_seconds=0.02, seed=0, contexts=None, calls_a_sample=None
):
    """{name: seconds a call, one a round}: each round times every call once, in random order. A
    sample is calls_a_sample calls, or as many as take sample_seconds if each were waited for.
    contexts: what a call's samples run in, entered outside of what is timed."""
    dice = random.Random(seed)
    repeats = {}

    def sample(name, count):
        context = (contexts or {}).get(name, nullcontext)
        return _seconds(calls[name], count, device, context)

    for name in calls:
        sample(name, 3)  # compilers and caches
        repeats[name] = calls_a_sample or max(1, math.ceil(sample_seconds / sample(name, 1)))
    samples = {name: [] for name in calls}
    for _ in range(rounds):
        order = list(calls)
        dice.shuffle(order)
        for name in order:
            samples[name].append(sample(name, repeats[name]) / repeats[name])
    return samples


def ratio(slower, faster, confidence=0.95, draws=1000, seed=0):
    """(mid, low, high) of how many times as fast the second is: the median of paired ratios, with a
    bootstrap interval."""
    logs = [math.log(a / b) for a, b in zip(slower, faster, strict=True)]
    dice = random.Random(seed)
    medians = sorted(statistics.median(dice.choices(logs, k=len(logs))) for _ in range(draws))
    tail = int((1 - confidence) / 2 * draws)
    ends = medians[tail], medians[-1 - tail]
    return tuple(math.exp(x) for x in (statistics.median(logs), *ends))


@functools.cache
def student(p, freedom):
    """What Student's t with so many degrees of freedom exceeds with probability p < 0.5."""
    factor = math.gamma((freedom + 1) / 2) / (math.sqrt(math.pi) * math.gamma(freedom / 2))

    def beyond(angle, steps=200):  # of tan(angle) * sqrt(freedom), by Simpson's rule
        width = (math.pi / 2 - angle) / steps
        weights = [1, *[4, 2] * (steps // 2 - 1), 4, 1]
        terms = (w * math.cos(angle + n * width) ** (freedom - 1) for n, w in enumerate(weights))
        return factor * width / 3 * sum(terms)

    low, high = 0.0, math.pi / 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle) > p else (low, middle)
    return math.tan(low) * math.sqrt(freedom)


def over_sittings(slower, faster, confidence=0.95):
    """(mid, low, high) of how many times as fast the second is, from the samples of several
    sittings, each in processes of its own: a sitting gives one number, the median of its paired
    ratios, and the interval is Student's t over these."""
    logs = [math.log(ratio(a, b, draws=1)[0]) for a, b in zip(slower, faster, strict=True)]
    half = student((1 - confidence) / 2, len(logs) - 1) * statistics.stdev(logs)
    half /= math.sqrt(len(logs))
    mid = statistics.fmean(logs)
    return tuple(math.exp(x) for x in (mid, mid - half, mid + half))
