"""Makes a faster version of a torch module of self-attention, and proves that it is right.

    python -m attune.evolve_module module.py --output out --budget 3m [--json]

module.py defines Model(n_embd, n_head, attn_pdrop, resid_pdrop, max_seqlen), a torch module from
[batch, seq, n_embd] to the same shape: multi-head self-attention, causal or not, with one nn.Linear
for q, k and v or with one for each. A KernelBench problem file of that kind (Model, get_inputs,
get_init_inputs) is taken with its own sizes, and the result is called ModelNew.

Candidates are module files. Operators of three levels (algorithm, implementation, hardware) write
them: how attention is computed, how q, k and v are projected and laid out, torch.compile's modes.
No network and no language model is needed. Every candidate is judged as python -m attune.evaluate
does: in processes of its own, with fresh inputs, to 1e-5, and also against float64. It is timed in
turns with the module, with torch's SDPA and with the best so far. Fitness is the time of torch's
SDPA over the candidate's; a wrong candidate has fitness 0.

The output folder has best_module.py (the module itself, if nothing faster was confirmed),
report.txt, evidence.json (candidates, verdicts, samples, seeds, environment), candidates/ and
history.jsonl, which grows with every candidate: --resume goes on after a kill. The last step
compares the best with the module five times, in new processes; its interval is Student's t over
these. Intervals of single candidates are of one pair of processes. Ctrl-C ends the search and
reports the best so far, which then is not confirmed.

With --evaluate a script of your own gives the score, and the best is the one with the highest.

Exit code: 0 a better module was confirmed, 1 none was, 2 bad usage or a module that is not
understood, 130 after Ctrl-C.
"""

import argparse
import fcntl
import hashlib
import json
import os
import platform
import random
import re
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from . import _functions, _judge, _module_source, _packing, _timing, _tool
from . import evaluate as _evaluate
from ._module_reading import UNDERSTOOD

REPETITIONS = 5  # of the final comparison, at least 2
SCRIPT_CALLS = 3  # of the user's own evaluation at the end
ERROR = 0.025  # of a run: a module that is not faster is confirmed
FOCUS = 4  # times as likely: operators of the level whose turn it is
SCRIPT_LIMIT = 600.0  # seconds for a call of the user's own evaluation
SIZES = tuple(_evaluate.SIZES)
BASELINE = "as_written"
FINAL = (
    "us",
    "baseline_us",
    "speedup",
    "interval",
    "interval_of",
    "spread",
    "fitness",
    "over_sdpa",
)
FINAL += ("over_sdpa_interval", "script_scores", "repetitions", "max_diff")
SAME = ("attune", "torch", "processor", "processors", "gpu", "OMP_NUM_THREADS")  # to resume


class Refused(ValueError):
    """The input cannot be evolved: said before any budget is spent."""


class Stopped(KeyboardInterrupt):
    """Ctrl-C. The folder has the best so far, and `result` says which it is."""

    def __init__(self, result):
        super().__init__("stopped")
        self.result = result


def seconds(budget):
    """Of "90s", "3m", "1h", or a number."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([smh]?)", str(budget).strip())
    if not found or not float(found[1]):
        raise Refused(f"budget {budget!r} is no time: 90s, 3m and 1h are")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


def evolve(
    module="module.py",
    evaluate=None,
    output="output",
    budget=None,
    iterations=None,
    seed=0,
    top=3,
    *,
    children=4,
    resume=False,
    device=None,
    rounds=9,
    tolerance=1e-5,
    say=None,
    **sizes,
):
    """Evolves the Model of a file and returns what was found, as a dict: python -m
    attune.evolve_module --help says how.

    evaluate    None: the judge alone. Or a script or command of your own that takes --path FILE and
                prints "Score: NUMBER" (or Speedup:, or __SCORE__:): it is called for what the judge
                accepts, and its score is the fitness. An exit code other than 0 is fitness 0.
    budget      "3m" (the default), "90s", "1h" or seconds; the final comparison is part of it
    iterations  at most so many candidates after torch's SDPA, which is always the first; without a
                budget, time is not limited
    top         how many elites a generation has
    children    how many candidates a generation tries
    resume      go on with the run in the output folder
    sizes       batch, seq, n_embd, n_head, max_seqlen: of the inputs and of the Model
    """
    return Run(
        module=module,
        evaluate=evaluate,
        output=output,
        budget=budget,
        iterations=iterations,
        seed=seed,
        top=top,
        children=children,
        resume=resume,
        device=device,
        rounds=rounds,
        tolerance=tolerance,
        say=say,
        sizes=sizes,
    ).run()


def read(module, device="cpu"):
    """The facts of _module_reading.py on a file; raises Refused where it is something else."""
    path = Path(module)
    if not path.is_file():
        raise Refused(f"{path} is not a Python file")
    try:
        compile(path.read_text(), str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError, OSError) as error:
        line = getattr(error, "lineno", None)
        told = getattr(error, "msg", None) or error
        raise Refused(f"{path}{f', line {line}' if line else ''}: {told}") from error
    memory = _judge.Memory(1 << 20, read_only=True)
    process = _judge.Process("the module", path, "cpu", memory, 1 << 20)
    try:
        limit = _judge.START_LIMIT
        process.ask("open", "while it was imported", limit, path=str(path.resolve()))
        process.ask("read", "while its Model was tried", limit)
        facts = _packing.unpack(process.outputs.bytes)
    except _judge.Refused as error:
        raise Refused(f"{path}: {error.said or error}") from error
    finally:
        process.kill()
        process.close()
        memory.close()
    if "why" in facts:
        raise Refused(
            f"{path}: {facts['why']}. {UNDERSTOOD}. python -m attune.evaluate judges a version"
            " that you write yourself"
        )
    return {**facts, "device": device.partition(":")[0]}


def environment():
    return {
        "attune": _functions.version(),
        "commit": _commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": _processor(),
        "processors": len(os.sched_getaffinity(0)),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cuda": torch.version.cuda,
        **(_driver_and_clocks() if torch.cuda.is_available() else {}),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
    }


def _said(command):
    """What a program prints; empty where it is not there, or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _commit():
    """Which the tool was built from; None where there is no tool."""
    try:
        return json.loads(_said([str(_tool.path()), "info", "--json"]))["commit"]
    except (OSError, ValueError, KeyError):
        return None


def _driver_and_clocks():
    """Of the first GPU that torch uses; MHz."""
    asked = {
        "gpu_driver": "driver_version",
        "gpu_sm_mhz": "clocks.sm",
        "gpu_most_sm_mhz": "clocks.max.sm",
        "gpu_most_memory_mhz": "clocks.max.memory",
    }
    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    query = [f"--query-gpu={','.join(asked.values())}", "--format=csv,noheader,nounits"]
    said = _said(["nvidia-smi", f"--id={uuid}", *query]).strip().split(", ")
    return dict(zip(asked, said, strict=True)) if len(said) == len(asked) else {}


def _processor():
    try:
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else platform.machine()


def _write(path, text):
    """The old file or the new one, whenever the process ends."""
    beside = path.with_name(path.name + ".new")
    beside.write_text(text)
    os.replace(beside, path)


class History:
    """Lines of JSON, each on the disk before the next candidate is judged."""

    def __init__(self, path):
        self.path, self.file = path, None

    def lines(self):
        """What is there, for this process alone. A line that was not finished is dropped, also
        from the file."""
        self.file = self.path.open("a+b")
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError("another process works in it") from None
        self.file.seek(0)
        text = self.file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self.file.truncate(len(whole))
        return [json.loads(line) for line in whole.splitlines()]

    def append(self, entry):
        self.file.write(json.dumps(entry).encode() + b"\n")
        self.file.flush()
        os.fsync(self.file.fileno())

    def close(self):
        if self.file:
            self.file.close()


class Run:
    def __init__(self, say, sizes, **options):
        self.__dict__.update(options)
        self.say = say or (lambda text: print(text, file=sys.stderr, flush=True))
        self.path, self.folder = Path(self.module), Path(self.output)
        self.device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        self._check(sizes)
        self.facts = read(self.path, self.device)
        said = _evaluate.SIZES | self.facts["sizes"] | sizes
        self.sizes = {k: said[k] for k in SIZES}
        if self.sizes["n_embd"] % self.sizes["n_head"]:
            raise Refused("n_embd is {n_embd}, which {n_head} heads cannot share".format_map(said))
        if self.sizes["seq"] > self.sizes["max_seqlen"]:
            raise Refused("seq is {seq}, more than max_seqlen {max_seqlen}".format_map(said))
        self.operators, self.skipped = _module_source.available(self.facts)
        self.history = History(self.folder / "history.jsonl")
        self.costs = []  # seconds of each judgement

    def _check(self, sizes):
        if self.budget is None and self.iterations is None:
            self.budget = "3m"
        self.limit = float("inf") if self.budget is None else seconds(self.budget)
        unknown = set(sizes) - set(SIZES)
        if unknown:
            raise TypeError(f"evolve of a module takes no {', '.join(sorted(unknown))}")
        counts = {"top": self.top, "children": self.children, "rounds": self.rounds, **sizes}
        if self.iterations is not None:
            counts["iterations"] = self.iterations
        for name, value in counts.items():
            if not isinstance(value, int) or value < 1:
                raise Refused(f"{name} is {value}; at least 1")
        if not self.tolerance > 0:
            raise Refused(f"tolerance is {self.tolerance}; it must be more than 0")
        if self.device.startswith("cuda") and not torch.cuda.is_available():
            raise Refused(f"device {self.device}: torch finds no GPU here")
        if (self.folder / "best_module.py").resolve() == self.path.resolve():
            raise Refused(f"{self.path} would be written over: name another output folder")
        if self.evaluate is not None:
            if not isinstance(self.evaluate, (str, os.PathLike)):
                raise Refused("evaluate is the name of a script, or a command")
            script = Path(str(self.evaluate))
            command = [sys.executable, str(script)] if script.suffix == ".py" else None
            if command and not script.is_file():
                raise Refused(f"evaluate {script} is not a file")
            self.command = command or shlex.split(str(self.evaluate))

    # --- the folder ---

    def _settings(self):
        """What must be the same for a run to go on."""
        return {
            "module_sha256": hashlib.sha256(self.path.read_bytes()).hexdigest(),
            "evaluate": self.evaluate and str(self.evaluate),
            "seed": self.seed,
            "top": self.top,
            "children": self.children,
            "rounds": self.rounds,
            "tolerance": self.tolerance,
            "device": self.device,
            **self.sizes,
        }

    def _open(self):
        """{title: candidate} of what is known already."""
        try:
            (self.folder / "candidates").mkdir(parents=True, exist_ok=True)
            lines = self.history.lines()
        except (OSError, ValueError) as error:
            raise Refused(f"output {self.folder} cannot be used: {error}") from error
        if lines and not self.resume:
            raise Refused(f"{self.folder} has a run already: resume it, or name another folder")
        settings = self._settings()
        if not lines:
            entry = {"event": "start", "module": str(self.path), **settings}
            self.history.append({**entry, "environment": environment()})
        else:
            here = environment()
            before, now = lines[0], {**settings, **{k: here[k] for k in SAME}}
            before = {**before, **before.get("environment", {})}
            if differ := [k for k, v in now.items() if before.get(k) != v]:
                raise Refused(f"the run in {self.folder} cannot go on: {', '.join(differ)} changed")
        return {line["name"]: line for line in lines if line["event"] == "candidate"}

    # --- one candidate ---

    def _judge(self, path, beside, seed):
        """(verdict, samples of baseline, candidate and those beside)"""
        options = _evaluate.parse(["--device", self.device])
        options.path, options.baseline = str(path), str(self.path)
        options.beside = [str(one) for one in beside]
        options.rounds, options.tolerance = self.rounds, self.tolerance
        for name, value in self.sizes.items():
            setattr(options, name, value)
        options.seed = int(hashlib.sha256(seed.encode()).hexdigest()[:15], 16)
        begin = time.monotonic()
        try:
            return _evaluate.judged(options)
        except _judge.Unusable as error:
            reason = {"correct": False, "score": 0.0, "reason": str(error), "unusable": True}
            return {**reason, "seed": options.seed}, None
        finally:
            self.costs.append(time.monotonic() - begin)

    def _file(self, entry):
        return self.folder / entry["file"] if entry["genes"] else self.path

    def _candidate(self, genes, generation, operator):
        """Judged, or from the history."""
        name = _module_source.title(genes, self.facts)
        number, best = len(self.found), self.incumbents[-1]
        file = f"candidates/{number:03}_{name}.py"
        text = _module_source.source(genes, self.facts, self.path)
        _write(self.folder / file, text)
        source = hashlib.sha256(text.encode()).hexdigest()
        if self.known.get(name, {}).get("source_sha256") == source:
            self.costs.append(self.known[name]["judge_s"])
            return self.known[name]
        beside = {"sdpa": self.found[0]} if self.found else {}
        if best["genes"] and best not in self.found[:1]:
            beside["incumbent"] = best
        files = [self._file(one) for one in beside.values()]
        verdict, samples = self._judge(self.folder / file, files, f"{self.seed} candidate {number}")
        entry = {
            "event": "candidate",
            "number": number,
            "generation": generation,
            "name": name,
            "operator": operator and operator.name,
            "level": operator and operator.level,
            "genes": genes,
            "file": file,
            "source_sha256": source,
            "fitness": 0.0,
            "judge_s": round(self.costs[-1], 3),
            **{k: v for k, v in verdict.items() if k not in ("path", "baseline", "score")},
        }
        if samples:
            names = ["baseline", "candidate", *beside]
            entry["samples_s"] = by_name = dict(zip(names, samples, strict=True))
            own = by_name["candidate"]
            entry["us"] = 1e6 * statistics.median(own)
            over_sdpa = _timing.ratio(by_name.get("sdpa", own), own)
            entry["fitness"] = entry["over_sdpa"] = over_sdpa[0]
            entry["over_sdpa_interval"] = list(over_sdpa[1:])
            rival = "sdpa" if best in self.found[:1] else "incumbent"
            entry["against"] = best["name"]
            entry["against_incumbent"] = list(
                _timing.ratio(by_name[rival if best["genes"] else "baseline"], own)
            )
            entry["accepted"] = entry["against_incumbent"][1] > 1
            if self.evaluate is not None:
                self._ask_script(entry, best)
        self.history.append(entry)
        return entry

    def _score(self, path):
        """(what the user's own evaluation says of a file, why there is no score)"""
        try:
            done = subprocess.run(
                [*self.command, "--path", str(path)],
                capture_output=True,
                text=True,
                timeout=SCRIPT_LIMIT,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return 0.0, str(error)
        words = r"^\s*(?:__SCORE__|score|speedup)\s*:\s*([-+\d.eE]+)"
        scores = re.findall(words, done.stdout, re.MULTILINE | re.IGNORECASE)
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()
            return 0.0, f"exit code {done.returncode}: {said[-1][:300] if said else ''}"
        try:
            return float(scores[-1]), ""
        except (IndexError, ValueError):
            return 0.0, "it prints no 'Score: NUMBER'"

    def _ask_script(self, entry, best):
        """The user's own evaluation of what the judge accepted."""
        score, said = self._score(self._file(entry))
        entry.update(fitness=max(score, 0.0), script_score=score, said=said)
        entry["accepted"] = score > best["script_score"]

    # --- the search ---

    def _children(self, generation, elites):
        """[(operator, genes)]: what the elites become by operators, those of one level more often;
        and mixtures of two elites."""
        dice = random.Random(f"{self.seed} generation {generation}")
        seen = {entry["name"] for entry in self.found}
        level = _module_source.LEVELS[(generation - 1) % len(_module_source.LEVELS)]
        drawn = []

        def add(operator, genes, weight):
            genes = _module_source.canonical(genes, self.facts)
            name = _module_source.title(genes, self.facts)
            chance = dice.random() ** (1 / weight)
            if name not in seen:
                seen.add(name)
                drawn.append((chance, name, operator, genes))

        for elite in elites:
            for operator in self.operators:
                weight = FOCUS if operator.level == level else 1
                add(operator, {**elite["genes"], **operator.genes}, weight)
        for one, other in zip(elites, elites[1:], strict=False):
            mixed = {k: dice.choice((one, other))["genes"][k] for k in one["genes"]}
            mix = _module_source.Operator("mix", "algorithm")
            add(mix, mixed, 1)
        drawn.sort(key=lambda one: (-one[0], one[1]))
        return [(operator, genes) for _, _, operator, genes in drawn[: self.children]]

    def _take(self, entry):
        self.found.append(entry)
        if not entry["correct"]:
            self.say(f"  {entry['name']}: refused, {entry['reason']}")
            return
        mid, low, high = entry["against_incumbent"]
        told = f"{entry['us']:.0f} us, fitness {entry['fitness']:.2f}"
        told += f", {mid:.2f} ({low:.2f}..{high:.2f}) times {entry['against']}"
        self.say(f"  {entry['name']}: {told}{', accepted' if entry.get('accepted') else ''}")
        if entry.get("accepted"):
            self.incumbents.append(entry)
            self._keep(entry)

    def _over(self):
        if self.iterations is not None and len(self.found) > self.iterations:
            return True
        if not self.costs:
            return False
        one = statistics.fmean(self.costs[-5:])
        return self._elapsed() + (1 + REPETITIONS) * one > self.limit

    def _elapsed(self):
        return time.monotonic() - self.begin

    def _say_generation(self, generation):
        best = self.incumbents[-1]
        us, speedup = best["us"], f"the baseline, {best['name']}"
        if best["name"] != BASELINE:
            low, high = best["interval"]
            speedup = f"{best['speedup']:.2f} ({low:.2f}..{high:.2f}) times {speedup}"
        self.say(f"generation {generation}: best {us:.0f} us, {speedup}")

    def run(self):
        try:
            return self._run()
        finally:
            self.history.close()

    def _run(self):
        self.begin = time.monotonic()
        self.known = self._open()
        self.found = []
        self.incumbents = [{"name": BASELINE, "genes": None}]
        if self.evaluate is not None:
            score, said = self._score(self.path)
            if said:
                raise Refused(f"evaluate {self.evaluate} does not take {self.path}: {said}")
            self.incumbents[0]["script_score"] = score
        self._keep(self.incumbents[0])
        if self.known:
            self.say(f"resumed: {len(self.known)} candidates are known")
        for name, why in self.skipped.items():
            if not why.startswith("only for"):
                self.say(f"without {name}: {why}")
        if self.facts["own_weights"]:
            self.say("candidates begin with nn.Linear's own weights, not as the module's code does")
        final, state = None, "stopped"
        try:
            self._search()
            final = self._final()
            state = "confirmed" if final else "none"
        except KeyboardInterrupt:
            raise Stopped(self._end(final, state)) from None
        return self._end(final, state)

    def _end(self, final, state):
        """What is kept is the winner of the final comparison, where there was one."""
        if state != "stopped":
            self._keep(final["entry"] if final else self.incumbents[0])
        result = self._leave(final, state)
        self.say(self.report(result).rstrip())
        return result

    def _search(self):
        entry = self._candidate(_module_source.first(self.facts), 0, None)
        if not entry["correct"]:
            raise RuntimeError(f"{self.path} with torch's SDPA is refused: {entry['reason']}")
        self.incumbents[0].update(us=1e3 * entry["baseline_ms"], fitness=1 / entry["speedup"])
        self._take(entry)
        self._say_generation(0)
        generation = 0
        while not self._over():
            generation += 1
            right = [entry for entry in self.found if entry["fitness"] > 0]
            elites = sorted(right, key=lambda e: (-e["fitness"], e["number"]))[: self.top]
            new = self._children(generation, elites)
            if not new:
                self.say("every combination of the operators has been tried")
                return
            for operator, genes in new:
                if self._over():
                    break
                self._take(self._candidate(genes, generation, operator))
            self._say_generation(generation)
            self._leave(None, "running")

    def _final(self):
        """The best against the module, in new processes each time. One that does not hold gives
        way to the one that it replaced, with half of the chance to be confirmed by mistake."""
        for n, best in enumerate(reversed(self.incumbents[1:])):
            final = self._compared(best, ERROR / 2 ** (n + 1))
            self.history.append({"event": "final", **final})
            if final["holds"]:
                return {**final, "entry": best}
            self.say(f"{best['name']} does not hold: {final['why']}")
        return None

    def _compared(self, best, error):
        plain = self.found[0]
        beside = [] if best is plain else [self._file(plain)]
        runs, sittings = [], []
        final = {"name": best["name"], "file": best["file"], "repetitions": runs, "holds": False}
        for n in range(REPETITIONS):
            turn = f"{self.seed} final {best['number']} {n}"
            verdict, samples = self._judge(self._file(best), beside, turn)
            if not samples:
                return {**final, "why": verdict["reason"]}
            mid, low, high = _timing.ratio(*samples[:2])
            sittings.append(samples)
            kept = {k: verdict[k] for k in ("seed", "max_diff", "float64_diff")}
            names = ["baseline", "candidate", "sdpa"][: len(samples)]
            kept["samples_s"] = dict(zip(names, samples, strict=True))
            runs.append({"speedup": mid, "interval": [low, high], **kept})
            self.say(f"final {n + 1} of {REPETITIONS}: {mid:.2f} ({low:.2f}..{high:.2f}) times")
        by_module = list(zip(*sittings, strict=True))
        mid, low, high = _timing.over_sittings(*by_module[:2])
        least = _timing.over_sittings(*by_module[:2], confidence=1 - 2 * error)[1]
        each = [one["speedup"] for one in runs]
        over_sdpa = _timing.over_sittings(by_module[-1 if beside else 1], by_module[1])
        pooled = [sum(samples, []) for samples in by_module[:2]]
        final.update(
            speedup=mid,
            interval=[low, high],
            spread=[min(each), max(each)],
            fitness=over_sdpa[0],
            over_sdpa=over_sdpa[0],
            over_sdpa_interval=list(over_sdpa[1:]),
            us=1e6 * statistics.median(pooled[1]),
            baseline_us=1e6 * statistics.median(pooled[0]),
            max_diff=max(one["max_diff"] for one in runs),
            interval_of=f"{REPETITIONS} pairs of processes",
            error=error,
            holds=least > 1,
        )
        if self.evaluate is not None:
            scores = [self._score(self._file(best))[0] for _ in range(SCRIPT_CALLS)]
            least = self.incumbents[0]["script_score"]
            final.update(
                script_scores=scores, fitness=statistics.median(scores), holds=min(scores) > least
            )
            why = f"the script's score is not above the module's in each of {SCRIPT_CALLS} calls"
        else:
            why = "it is not faster than the module by more than processes differ"
        return final if final["holds"] else {**final, "why": why}

    # --- what is left ---

    def _keep(self, entry):
        _write(self.folder / "best_module.py", self._file(entry).read_text())

    def _leave(self, final, state):
        """evidence.json and report.txt, of a run that may go on. Returns the result. Before the
        final comparison its numbers are those of the search."""
        best = final or self.incumbents[0 if state == "none" else -1]
        result = {
            "module": str(self.path),
            "best": str(self.folder / "best_module.py"),
            "state": state,
            "faster": final is not None,
            "name": best["name"],
            "speedup": 1.0,
            **{k: best[k] for k in FINAL if k in best},
            "candidates": len(self.found),
            "refused": sum(not entry["correct"] for entry in self.found),
            "elapsed_s": round(self._elapsed(), 1),
            "evidence": str(self.folder / "evidence.json"),
        }
        evidence = {
            **result,
            "settings": self._settings(),
            "environment": environment(),
            "reading": self.facts,
            "operators": {one.name: one.level for one in self.operators},
            "skipped": self.skipped,
            "all_candidates": self.found,
            "final": {k: v for k, v in final.items() if k != "entry"} if final else None,
        }
        _write(self.folder / "evidence.json", json.dumps(evidence, indent=1) + "\n")
        _write(self.folder / "report.txt", self.report(result))
        return result

    def report(self, result):
        sizes = ", ".join(f"{k} {v}" for k, v in self.sizes.items())
        lines = [f"{self.path}: {sizes}, {self.device}, seed {self.seed}"]
        lines.append(f"{result['candidates']} candidates, {result['refused']} refused")
        if result["faster"]:
            low, high = result["interval"]
            least, most = result["spread"]
            lines += [
                f"best: {result['name']}, in {result['best']}",
                f"  {result['us']:.0f} us, the module {result['baseline_us']:.0f} us:"
                f" {result['speedup']:.2f} ({low:.2f}..{high:.2f}) times as fast",
                f"  {REPETITIONS} repetitions between {least:.2f} and {most:.2f};"
                f" {result['over_sdpa']:.2f} times torch's SDPA; max difference"
                f" {result['max_diff']:.1e} (allowed {self.tolerance:g})",
            ]
            if self.evaluate is not None:
                scores = ", ".join(f"{one:g}" for one in result["script_scores"])
                module = self.incumbents[0]["script_score"]
                lines.append(f"  scores by {self.evaluate}: {scores}; the module {module:g}")
        elif result["state"] in ("stopped", "running"):
            low, high = result.get("interval", (1, 1))
            lines += [
                f"{result['state']} before the final comparison; --resume goes on",
                f"best so far: {result['name']}, in {result['best']}: {result['speedup']:.2f}"
                f" ({low:.2f}..{high:.2f}) times as fast as the module, not confirmed",
            ]
        else:
            lines.append(
                "no faster module is confirmed"
                if self.evaluate is None
                else "no module with a higher score is confirmed"
            )
        lines += ["", f"{'candidate':<44} {'us':>9} {'fitness':>8}  times the module"]
        for entry in sorted(self.found, key=lambda e: -e["fitness"]):
            if entry["correct"]:
                low, high = entry["interval"]
                told = f"{entry['speedup']:.2f} ({low:.2f}..{high:.2f})"
                line = f"{entry['us']:>9.0f} {entry['fitness']:>8.2f}  {told}"
            else:
                line = f"{'-':>9} {0:>8}  {entry['reason']}"
            lines.append(f"{entry['name']:<44} {line}")
        return "\n".join(lines) + "\n"


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m attune.evolve_module",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("module", help="the file with the Model")
    parser.add_argument("--output", default="output", help="folder (default: output)")
    parser.add_argument("--budget", help="90s, 3m, 1h; the default is 3m without --iterations")
    parser.add_argument(
        "--iterations", type=int, metavar="N", help="candidates at most, after torch's SDPA"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the search and of the inputs")
    parser.add_argument("--top", type=int, default=3, help="elites of a generation")
    parser.add_argument("--children", type=int, default=4, help="candidates of a generation")
    parser.add_argument("--resume", action="store_true", help="go on with the run in the folder")
    parser.add_argument(
        "--evaluate",
        metavar="SCRIPT",
        help="your own evaluation, called with --path FILE: its 'Score: NUMBER' is the fitness",
    )
    parser.add_argument("--device", help="cpu or cuda (default: cuda where torch finds a GPU)")
    for name in SIZES:
        default = _evaluate.SIZES[name]
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help=f"default: {default}")
    parser.add_argument("--rounds", type=int, default=9, help="samples of each module")
    parser.add_argument("--tolerance", type=float, default=1e-5)
    parser.add_argument("--json", action="store_true", help="the result as JSON on stdout")
    return parser.parse_args(arguments)


def main(arguments=None):
    options = vars(parse(arguments))
    as_json = options.pop("json")
    for name in SIZES:
        if options[name] is None:
            del options[name]
    try:
        result = evolve(**options)
    except Stopped as stopped:
        if as_json:
            print(json.dumps(stopped.result, indent=2))
        return 130
    except (Refused, RuntimeError, OSError) as error:
        print(f"attune.evolve_module: {error}", file=sys.stderr)
        if as_json:
            print(json.dumps({"faster": False, "error": str(error)}))
        return 2
    if as_json:
        print(json.dumps(result, indent=2))
    return 0 if result["faster"] else 1


if __name__ == "__main__":
    _tool.run(main)
