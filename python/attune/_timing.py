"""Timing on a machine that others use too: competitors take turns, ratios are paired."""

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
