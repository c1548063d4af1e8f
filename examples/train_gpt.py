#!/usr/bin/env python3
"""Trains a small GPT on text that it makes, with torch's attention, with Attune's, or with both.

examples/train_gpt.py                                    both, 200 steps, on the CPU
examples/train_gpt.py --attention attune --steps 1000 --layers 6 --width 384 --device cuda
examples/train_gpt.py --json run.json --plot run.png

With both, two models start with the same weights and see the same batches; a step of one is timed,
then a step of the other, in changing order. A third model, with torch's plain backend (MATH), shows
what rounding alone does: its losses leave torch's, too. The program ends with 1 where Attune's
leave torch's by more than MOST times that."""

import argparse
import hashlib
import json
import math
import os
import platform
import random
import statistics
import sys
import time
from contextlib import nullcontext
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench"))
sys.path.append(str(ROOT / "python"))  # an installed package comes first
import find_python  # noqa: E402

find_python.need("torch", "numpy")
import attune  # noqa: E402
import torch  # noqa: E402
from report import write_atomically  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

MOST = 4  # times the difference that rounding makes
WARM_UP = 3  # steps that are not timed
DIGEST = "attune-data-sha256"  # in the metadata of the picture: what it was drawn from

# --- text -----------------------------------------------------------------------------------------

ARTICLES, ADJECTIVES = ("the", "a", "every", "no"), ("red", "old", "quiet", "small", "distant")
NOUNS = ("river", "engine", "teacher", "window", "signal", "garden", "letter", "machine")
VERBS = ("sees", "follows", "answers", "repairs", "forgets", "carries")


def phrase(rng):
    adjective = f" {rng.choice(ADJECTIVES)}" if rng.random() < 0.5 else ""
    return f"{rng.choice(ARTICLES)}{adjective} {rng.choice(NOUNS)}"


def sentence(rng):
    """Of a small grammar; now and then numbers, which only who looks back can know."""
    if rng.random() < 0.3:
        names = rng.sample("abcdefghkmnp", 3)
        values = [rng.randrange(10, 100) for _ in names]
        told = ", ".join(f"{n} is {v}" for n, v in zip(names, values, strict=True))
        asked = rng.randrange(3)
        return f"{told}; so {names[asked]} is {values[asked]}. "
    rest = f", and {phrase(rng)} {rng.choice(VERBS)} it" if rng.random() < 0.3 else ""
    return f"{phrase(rng)} {rng.choice(VERBS)} {phrase(rng)}{rest}. "


def make_text(seed, characters):
    rng = random.Random(seed)
    parts, length = [], 0
    while length < characters:
        parts.append(sentence(rng))
        length += len(parts[-1])
    return "".join(parts)


# --- model ----------------------------------------------------------------------------------------


def math_attention(q, k, v, is_causal):
    with sdpa_kernel(SDPBackend.MATH):
        return functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)


ATTENTION = {
    "torch": functional.scaled_dot_product_attention,
    "attune": attune.scaled_dot_product_attention,
    "math": math_attention,
}


class Block(nn.Module):
    def __init__(self, width, heads, attention):
        super().__init__()
        self.heads, self.attention = heads, attention
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = (t.transpose(1, 2) for t in qkv.unbind(2))
        heads = self.attention(q, k, v, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.second(x))))


class Gpt(nn.Module):
    def __init__(self, vocabulary, length, layers, width, heads, attention):
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, attention) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.apply(self.start)

    @staticmethod
    def start(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens):
        x = self.token(tokens) + self.place.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


# --- training -------------------------------------------------------------------------------------


class Run:
    """One model in training, with its losses and times."""

    def __init__(self, name, vocabulary, options):
        torch.manual_seed(options.seed)
        sizes = (options.seq, options.layers, options.width, options.heads)
        self.model = Gpt(vocabulary, *sizes, ATTENTION[name]).to(options.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=options.lr)
        self.options, self.losses, self.seconds = options, [], []

    def step(self, tokens):
        options = self.options
        mixed = torch.autocast(options.device, torch.bfloat16)
        begin = time.perf_counter()
        with mixed if options.dtype == "bf16" else nullcontext():
            scores = self.model(tokens[:, :-1])
            loss = functional.cross_entropy(scores.flatten(0, 1).float(), tokens[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.losses.append(loss.item())  # waits for the device
        self.seconds.append(time.perf_counter() - begin)

    def tokens_per_second(self):
        timed = self.seconds[WARM_UP:] or self.seconds
        return self.options.batch * self.options.seq / statistics.median(timed)


def batches(tokens, options):
    """The same for every model: they depend on the seed alone."""
    generator = torch.Generator().manual_seed(options.seed)
    for _ in range(options.steps):
        at = torch.randint(len(tokens) - options.seq, (options.batch,), generator=generator)
        rows = torch.stack([tokens[n : n + options.seq + 1] for n in at.tolist()])
        yield rows.to(options.device)


def train(options):
    text = make_text(options.seed, 200_000)
    letters = sorted(set(text))
    number = {letter: n for n, letter in enumerate(letters)}
    tokens = torch.tensor([number[letter] for letter in text])
    names = ["torch", "attune", "math"] if options.attention == "both" else [options.attention]
    runs = {name: Run(name, len(letters), options) for name in names}
    for n, rows in enumerate(batches(tokens, options)):
        for place in range(len(names)):  # in changing order
            runs[names[(n + place) % len(names)]].step(rows)
        if n % 20 == 0 or n + 1 == options.steps:
            said = ", ".join(f"{name} {run.losses[-1]:.4f}" for name, run in runs.items())
            print(f"step {n + 1}: loss {said}", file=sys.stderr, flush=True)
    return runs


# --- result ---------------------------------------------------------------------------------------


def furthest(a, b):
    """(difference, step) where two curves are first furthest from each other."""
    apart = [abs(x - y) for x, y in zip(a, b, strict=True)]
    return max(apart), apart.index(max(apart)) + 1


def processor():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(x.split(": ")[1] for x in lines if x.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def backward_kernel(options):
    """Which kernel computes the gradients; in words why none of Attune's does."""
    dtype = torch.bfloat16 if options.dtype == "bf16" else torch.float32
    shape = options.batch, options.heads, options.seq, options.width // options.heads
    q = torch.empty(shape, dtype=dtype, device=options.device)
    try:
        return attune.explain(q, q, q, is_causal=True, backward=True)
    except attune.Error as error:
        return {"backward": {"chosen": "torch", "reason": str(error)}}


def describe(runs, options):
    cuda = options.device == "cuda"
    return {
        "options": {k: v for k, v in vars(options).items() if k not in ("json", "plot")},
        "hardware": torch.cuda.get_device_name() if cuda else processor(),
        "threads": torch.get_num_threads(),
        "load_average": os.getloadavg()[1],  # of five minutes: who else had the processors
        "date": time.strftime("%Y-%m-%d"),
        "torch": torch.__version__,
        "attune": attune.__version__,
        "parameters": sum(p.numel() for p in next(iter(runs.values())).model.parameters()),
        "explained": backward_kernel(options) if "attune" in runs else None,
        "losses": {name: run.losses for name, run in runs.items()},
        "tokens_per_second": {name: run.tokens_per_second() for name, run in runs.items()},
    }


def compare(result):
    """The two differences, and whether Attune's is rounding's."""
    losses = result["losses"]
    ours, at = furthest(losses["attune"], losses["torch"])
    noise, noise_at = furthest(losses["math"], losses["torch"])
    floor = 4 * torch.finfo(torch.float32).eps * max(losses["torch"])  # a few roundings
    agree = ours <= MOST * max(noise, floor)
    return {
        "attune_and_torch": {"difference": ours, "step": at},
        "math_and_torch": {"difference": noise, "step": noise_at},
        "agree": agree and all(map(math.isfinite, losses["attune"])),
    }


def report(result):
    for name, speed in result["tokens_per_second"].items():
        what = " (torch's plain backend)" if name == "math" else ""
        print(f"{name}{what}: {speed:,.0f} tokens/s, last loss {result['losses'][name][-1]:.4f}")
    if (found := result.get("comparison")) is None:
        return 0
    for pair, words in (("attune_and_torch", "attune and torch"),
                        ("math_and_torch", "two backends of torch")):  # fmt: skip
        where = found[pair]
        print(f"{words}: losses differ by at most {where['difference']:.1e} (step {where['step']})")
    ratio = result["tokens_per_second"]["attune"] / result["tokens_per_second"]["torch"]
    print(f"attune's tokens/s are {ratio:.2f} times torch's")
    print("the losses agree" if found["agree"] else "THE LOSSES DO NOT AGREE")
    return 0 if found["agree"] else 1


def draw(text, path):
    """Of a result as JSON."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    result = json.loads(text)
    losses, options = result["losses"], result["options"]
    both = "comparison" in result
    figure, axes = pyplot.subplots(1, 1 + both, figsize=(11 if both else 6, 4.2), squeeze=False)
    steps = range(1, len(next(iter(losses.values()))) + 1)
    styles = {"torch": ("#e08214", "-", 3.5), "attune": ("#1f5fa8", "-", 1.3)}
    for name, (colour, line, width) in styles.items():
        if name in losses:
            speed = result["tokens_per_second"][name]
            label = f"{name}: {speed:,.0f} tokens/s"
            axes[0, 0].plot(steps, losses[name], line, color=colour, linewidth=width, label=label)
    axes[0, 0].set(xlabel="step", ylabel="loss", title="Loss")
    axes[0, 0].legend(frameon=False)
    if both:
        pairs = (("attune", "attune and torch", "#1f5fa8"),
                 ("math", "two backends of torch", "#8c8c8c"))  # fmt: skip
        for name, label, colour in pairs:
            apart = [abs(a - b) for a, b in zip(losses[name], losses["torch"], strict=True)]
            axes[0, 1].plot(steps, apart, ".", color=colour, label=label)
        axes[0, 1].set(xlabel="step", title="Difference of the losses")
        axes[0, 1].legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 0.1))
    for one in axes.flat:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(color="#dddddd", linewidth=0.8)
    shape = f"{options['layers']} layers × {options['width']}, {options['heads']} heads"
    figure.suptitle(
        f"GPT of {result['parameters']:,} parameters ({shape}), {options['dtype']}, "
        f"{options['batch']} × {options['seq']} tokens a step; {result['hardware']}, "
        f"torch {result['torch']}",
        fontsize=9,
    )
    figure.tight_layout()
    metadata = {DIGEST: hashlib.sha256(text.encode()).hexdigest(), "Software": None}
    write_atomically(
        path, lambda name: figure.savefig(name, format="png", dpi=150, metadata=metadata)
    )


def parse(argv):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--attention", choices=("torch", "attune", "both"), default="both")
    numbers = (("steps", 200), ("layers", 4), ("width", 128), ("heads", 4), ("seq", 256),
               ("batch", 8), ("seed", 0))  # fmt: skip
    for name, standard in numbers:
        parser.add_argument(f"--{name}", type=int, default=standard)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="f32", help="bf16: autocast")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path, help="write losses and speeds here")
    parser.add_argument("--plot", type=Path, help="draw them here, a .png")
    options = parser.parse_args(argv)
    for name, _ in numbers[:-1]:
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}; it must be positive")
    if options.width % options.heads:
        parser.error(f"--width is {options.width}, which --heads {options.heads} cannot share")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device is cuda, but torch sees no CUDA device")
    return options


def main(argv=None):
    options = parse(argv)
    runs = train(options)
    result = describe(runs, options)
    if options.attention == "both":
        result["comparison"] = compare(result)
    code = report(result)
    text = json.dumps(result, indent=1) + "\n"
    if options.json:
        write_atomically(options.json, lambda name: Path(name).write_text(text))
    if options.plot:
        draw(text, options.plot)
    return code


if __name__ == "__main__":
    sys.exit(main())
