"""The judge of attune.evaluate: it owns the inputs, the clock, the comparison and the verdict.

Two processes of one kind run the baseline and the module that is judged (_judge_child.py). Both are
stopped (SIGSTOP) at all times but between a request and its reply, so that nothing is computed
outside of what is timed. Inputs lie in memory that they cannot write, every call has other ones,
and every result is compared whole. Of what a process says only an exception is used, to be shown,
as far as _judge_words.py lets it through.

Other modules can be timed in the same rounds (options.beside, a list of files). They are trusted as
the baseline is: their results are not compared.
"""

import fcntl
import hashlib
import json
import mmap
import os
import random
import re
import secrets
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from . import _judge_child, _judge_words, _sandbox

START_LIMIT = 120.0  # seconds: torch and the module are imported, a model is made
FIRST_LIMIT = {"cpu": 60.0, "cuda": 300.0}  # of a call that may compile, or tune its kernels
TIMED_LIMIT = 10.0  # of one that has had its warm-up; both beside 20 times the baseline's time
STOP_LIMIT = 5.0  # until all threads are stopped: microseconds, if nothing is in the way
BASELINE_LIMIT = 600.0  # of a call of the baseline
WARM_UP = 0.5  # seconds
SHORT = 0.005  # seconds: of shorter calls a sample has several
WARMED = 0.05  # seconds: shorter calls follow another one of the same process
REPLY = 1024  # bytes at most
EXACTLY = 4  # times the baseline's own distance from float64, where the tolerance says nothing
SPECIAL = ("large", "tiny", "one-hot")

_F_SEAL_FUTURE_WRITE = 0x10
_STATES = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
_OVER = os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED
_KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "USER", "LOGNAME", "CC", "CXX", "VIRTUAL_ENV")
_KEPT_PREFIXES = ("LD_", "CUDA_", "NVIDIA_", "OMP_", "KMP_", "GOMP_", "MKL_", "ATTUNE_", "ASAN_")


class Unusable(Exception):
    """It could not be tried at all. `whose`: the process that it is about, if it is about one."""

    whose = ""


class Refused(Exception):
    """The verdict on what was tried: a reason in the judge's words, and the module's own beside
    it, for the user's terminal."""

    def __init__(self, reason, said=""):
        super().__init__(reason)
        self.said = said


class Disturbed(Refused):
    """Somebody else did something to a process of the judge: nobody but the module had the time."""


class Memory:
    """Shared with one process or two; of a fixed size. Where `read_only`, others can map it only
    so: sealed is False on kernels before 5.1, which do not know that."""

    def __init__(self, size, read_only):
        self.fd = os.memfd_create("attune-judge", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, size)
        self.bytes = torch.frombuffer(mmap.mmap(self.fd, size), dtype=torch.uint8)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        self.sealed = read_only and self._seal(seals | _F_SEAL_FUTURE_WRITE)
        if not self.sealed:
            self._seal(seals)
        self._seal(fcntl.F_SEAL_SEAL)

    def _seal(self, what):
        try:
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, what)
            return True
        except OSError:
            return False

    def view(self, shape, dtype=torch.float32):
        size = dtype.itemsize * torch.Size(shape).numel()
        return self.bytes[:size].view(dtype).view(shape)

    def close(self):
        os.close(self.fd)


def _environment(scratch, device, module):
    """What torch and compilers need; caches go to the scratch folder."""
    kept = {k: v for k, v in os.environ.items() if k in _KEPT or k.startswith(_KEPT_PREFIXES)}
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    own = Path(os.environ.get("ATTUNE_CACHE_DIR") or Path(cache) / "attune")
    mine = Path(scratch) / "attune"
    mine.mkdir(mode=0o700)
    if (own / "tuned.json").is_file():  # what was promoted is judged as it would run
        shutil.copy(own / "tuned.json", mine)
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
    return {
        "USER": "nobody",  # torch names a cache by it, and would look into /etc/passwd
        **kept,
        **hidden,
        "ATTUNE_CACHE_DIR": str(mine),
        "HOME": scratch,
        "TMPDIR": scratch,
        "XDG_CACHE_HOME": scratch,
        "PYTHONPATH": os.pathsep.join(_sandbox.python_path(module)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONFAULTHANDLER": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # otherwise it leaves processes behind
    }


class Process:
    """One module in a process of its own. It runs while it is asked for something, and not else."""

    def __init__(self, who, path, device, inputs, size):
        self.who, self.path = who, str(Path(path).resolve())
        self.opened = False  # is the module in it?
        self.outputs = Memory(size, read_only=False)
        self.scratch = tempfile.TemporaryDirectory(
            prefix="attune-judge-", ignore_cleanup_errors=True
        )
        self.log = tempfile.TemporaryFile()  # without a name: only its end is ever read
        requests, self.requests = os.pipe()
        self.replies, replies = os.pipe()
        passed = requests, replies, inputs.fd, self.outputs.fd
        allowed = json.dumps(_sandbox.rights(self.path, device))
        command = [sys.executable, _sandbox.__file__, device, *map(str, passed), allowed]
        self.started = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            env=_environment(self.scratch.name, device, self.path),
            pass_fds=passed,
            start_new_session=True,
        )
        os.close(requests)
        os.close(replies)
        self.pid = self.started.pid
        self.pidfd = os.pidfd_open(self.pid)
        self.worked = self.scheduled = None  # how it was left when it was stopped

    def send(self, do, where, **what):
        """Lets it run. The clock starts before it can know what is asked for."""
        self.where, self.nonce = where, secrets.token_hex(16)
        if self.worked is not None:
            self.look_still()
            if self._scheduling() != self.scheduled:
                raise Disturbed(f"it changed how {self.who}'s process is scheduled")
        self.processes = set(os.listdir("/proc"))
        self.opened = self.opened or do == "open"
        line = json.dumps({"nonce": self.nonce, "do": do, **what})
        try:
            os.write(self.requests, line.encode() + b"\n")
        except BrokenPipeError:
            self._ended()
        self.clock = time.perf_counter()
        os.kill(self.pid, signal.SIGCONT)

    def receive(self, limit):
        """(seconds, its number). The clock runs until it has replied, all of its threads are
        stopped, and processes that it may have started are counted: what has ended by then was
        timed, and what has not is seen."""
        reply = self._reply(limit)
        self._stop()
        new = _parents(set(os.listdir("/proc")) - self.processes)
        self.left = _below(new, {self.pid, os.getpid()})
        seconds = time.perf_counter() - self.clock
        before, self.worked = self.worked, self._processor_time()
        self.scheduled = self._scheduling()
        if before is not None:
            processors = len(os.sched_getaffinity(0))
            if self.worked - before > 1.05 * processors * seconds + 0.005:
                raise Refused(f"its process used more than the {processors} processors it has")
        found = re.fullmatch(r"(\w+) (ok|wrong|raised) (-?\d{1,20}) ([ -~]*)", reply)
        if not found or found[1] != self.nonce:
            raise Refused(f"its process sent something that is no reply {self.where}")
        _, word, number, said = found.groups()
        said = _judge_words.shown(said, self.path)
        if word == "wrong":
            raise Refused(f"its result has a wrong shape or type {self.where}", said)
        if word == "raised":
            raise Refused(f"it raised an exception {self.where}", said)
        return seconds, int(number)

    def ask(self, do, where, limit, **what):
        self.send(do, where, **what)
        return self.receive(limit)

    def _reply(self, limit):
        got = b""
        poll = select.poll()
        poll.register(self.replies, select.POLLIN)
        poll.register(self.pidfd, select.POLLIN)
        end = time.monotonic() + limit
        while not got.endswith(b"\n"):
            ready = poll.poll(max(0.0, end - time.monotonic()) * 1000)
            if not ready:
                self.kill()
                raise Refused(f"killed after {limit:.0f} s {self.where}", self._printed())
            some = os.read(self.replies, REPLY) if self.replies in dict(ready) else b""
            got += some
            if not some:
                self._ended()
            if len(got) > REPLY:
                raise Refused(f"its process sent something that is no reply {self.where}")
        return got.decode("ascii", "replace").rstrip("\n")

    def _stop(self):
        os.kill(self.pid, signal.SIGSTOP)
        end = time.monotonic() + STOP_LIMIT
        while not (state := os.waitid(os.P_PID, self.pid, _STATES)) and time.monotonic() < end:
            os.sched_yield()
        if state and state.si_code in _OVER:
            self._ended()
        if not state or state.si_code != os.CLD_STOPPED:  # it waits for a vfork, or is traced
            self.kill()
            raise Refused(f"its process cannot be stopped {self.where}")
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG)  # what is seen next is news

    def look_still(self):
        """Was it stopped all the time? A timer of its own could have continued it."""
        woken = os.waitid(os.P_PID, self.pid, _STATES | os.WCONTINUED)
        if woken and woken.si_code in _OVER:
            self._ended()
        if woken or self._processor_time() - self.worked > 0.001:
            raise Disturbed(f"{self.who}'s process worked outside of the timed call")

    def _processor_time(self):
        """Of all its threads, to the nanosecond: the clock that clock_getcpuclockid names."""
        return time.clock_gettime(~self.pid << 3 | 2)

    def _ended(self):
        select.select([self.pidfd], [], [], 1.0)
        self.kill()
        code = self.started.returncode
        how = f"ended with exit code {code}"
        if code < 0:
            names = {one.value: one.name for one in signal.Signals}
            how = f"died of {names.get(-code, f'signal {-code}')}"
        if code == -signal.SIGSEGV:
            how += " (its inputs are read-only memory)"
        raise Refused(f"its process {how} {self.where}", self._printed())

    def _printed(self):
        """Where it crashed, on one line. What it printed is the module's own, and is only shown
        where the module was not yet there."""
        size = os.fstat(self.log.fileno()).st_size
        text = os.pread(self.log.fileno(), 65536, max(0, size - 65536)).decode("ascii", "replace")
        if self.opened:
            return _judge_words.crash(text, self.path)
        lines = ("".join(c for c in t if c.isprintable()) for t in text.split("\n") if t)
        return " | ".join(lines)[-_judge_child.TEXT :]

    def _scheduling(self):
        """How each of its threads is scheduled."""
        try:
            threads = map(int, os.listdir(f"/proc/{self.pid}/task"))
            return {t: (os.sched_getaffinity(t), _sandbox.scheduling(t)) for t in threads}
        except OSError:  # killed from outside: its next request says so
            return {}

    def kill(self):
        if self.started.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            self.started.wait()

    def close(self):
        for descriptor in (self.requests, self.replies, self.pidfd):
            os.close(descriptor)
        self.log.close()
        self.outputs.close()
        try:
            self.scratch.cleanup()
        except RecursionError:  # it made folders in folders: they stay
            pass


def _parent(process):
    """None where it is over. A process whose first thread has ended looks as if it were, and may
    still run."""
    try:
        folder = Path("/proc", process)
        state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
        if state in "ZX":
            threads = [(one / "stat").read_text() for one in (folder / "task").iterdir()]
            if all(thread.rpartition(")")[2].split()[0] in "ZX" for thread in threads):
                return None
        return int(parent)
    except OSError:
        return None


def _parents(processes):
    """{process: parent} of those names in /proc that run."""
    found = {int(p): _parent(p) for p in processes if p.isdecimal()}
    return {process: parent for process, parent in found.items() if parent is not None}


def _below(parents, roots):
    """The processes whose line of parents leads to one of the roots."""
    found = set()
    for process in parents:
        line = [process]
        while line[-1] in parents and line[-1] not in roots:
            line.append(parents[line[-1]])
        if line[-1] in roots:
            found.update(line[:-1])
    return found


class Judge:
    """The baseline and the module beside each other. Use it as a context: it ends both, and those
    of options.beside."""

    RUN = "run"  # what a process is asked for: a method of _judge_child.Server

    def __init__(self, options):
        self.options = options
        self.draws = 0
        self.reseed()
        self.sizes = {k: getattr(options, k) for k in ("n_embd", "n_head", "max_seqlen")}
        self.seen = {"max_diff": 0.0, "float64_diff": 0.0, "baseline_float64_diff": 0.0}
        self.usual = 0.0  # seconds of the baseline, the longest so far
        self.compared = False

    def reseed(self):
        """For every call anew: from the numbers of one nobody can compute those of the next."""
        self.draws += 1
        seed = hashlib.sha256(f"{self.options.seed} {self.draws}".encode()).digest()
        self.dice = random.Random(seed)
        self.generator = torch.Generator().manual_seed(self.dice.getrandbits(63))

    def __enter__(self):
        o = self.options
        for path in (o.baseline, o.path, *getattr(o, "beside", ())):
            if not Path(path).is_file():
                raise Unusable(f"{path} is not a Python file")
        self.threads = torch.get_num_threads()
        torch.set_num_threads(1)  # its own would still spin when the clock runs
        self.before = _sandbox.guard(True)
        self.baseline = self.candidate = None
        self.beside = []
        self.known = self._strays(set())
        size = self._memory()
        self.inputs = Memory(size, read_only=True)
        try:
            self.baseline = Process("the baseline", o.baseline, o.device, self.inputs, size)
            self.candidate = Process("the module", o.path, o.device, self.inputs, size)
            for path in getattr(o, "beside", ()):
                self.beside.append(Process(str(path), path, o.device, self.inputs, size))
        except BaseException as error:
            self.__exit__()
            if isinstance(error, OSError):  # a kernel before 5.3, or a container that forbids it
                raise Unusable(f"no process can be started here: {error}") from error
            raise
        return self

    def _memory(self):
        """Bytes for the inputs, and for each process's results: weights come by the same way."""
        o = self.options
        rows = max(o.batch * o.seq, o.max_seqlen, 8)
        return 8 * rows * o.n_embd + 256 * o.n_embd**2 + (64 << 20)

    def __exit__(self, *_):
        processes = [p for p in (self.baseline, self.candidate, *self.beside) if p]
        for process in processes:
            process.kill()
        # Whatever lost its parent is our child now, and its children will be.
        end, ended = time.monotonic() + 10, set()
        while (strays := self._strays(self.known)) and time.monotonic() < end:
            for what in (signal.SIGSTOP, signal.SIGKILL):  # none starts another meanwhile
                for process in strays:
                    try:
                        os.kill(process, what)
                    except OSError:  # it is over
                        pass
            ended |= strays
            time.sleep(0.001)
        for process in ended:
            try:
                os.waitpid(process, os.WNOHANG)
            except ChildProcessError:
                pass
        for process in processes:
            process.close()
        self.inputs.close()
        _sandbox.guard(self.before)
        torch.set_num_threads(self.threads)

    def _strays(self, known):
        """Processes below this one, without what was there before and what trusted ones started."""
        parents = _parents(os.listdir("/proc"))
        trusted = {p.pid for p in (self.baseline, *self.beside) if p}
        expected = trusted | ({self.candidate.pid} if self.candidate else set())
        return _below(parents, {os.getpid()}) - expected - _below(parents, trusted) - known

    # --- loading ---

    def load(self):
        """Imports all modules side by side."""
        o = self.options
        files = [(self.baseline, o.baseline), (self.candidate, o.path)]
        files += [(process, process.who) for process in self.beside]
        for process, _ in files:
            process.send("open", "while it was imported", path=process.path)
        for process, path in files:
            self._usable(f"{path} cannot be imported", process.receive, START_LIMIT)

    def fresh_weights(self):
        """New weights for all: the baseline's, as it draws them by a seed."""
        seed = self.dice.getrandbits(63)
        self._make("make", {"sizes": self.sizes, "seed": seed}, "load", {"sizes": self.sizes})

    def _make(self, first, request, then, others):
        """The baseline's Model makes a block of its weights, which the others get."""
        o = self.options
        what = f"the Model of {o.baseline} cannot be made"
        self._copy(what, first, "while its Model was made", START_LIMIT, **request)
        for process, path in [(self.candidate, o.path), *((p, p.who) for p in self.beside)]:
            self._usable(
                f"the Model of {path} cannot be made with the baseline's weights",
                process.ask,
                then,
                "while its Model was made",
                START_LIMIT,
                **others,
            )

    def _copy(self, what, do, where, limit, **request):
        """What the baseline wrote, to the inputs of all; returns its size."""
        _, size = self._usable(what, self.baseline.ask, do, where, limit, **request)
        if not 0 < size <= len(self.inputs.bytes):
            raise Unusable(f"{what}: its size makes no sense")
        self.inputs.bytes[:size] = self.baseline.outputs.bytes[:size]
        return size

    def _usable(self, what, call, *arguments, **named):
        try:
            return call(*arguments, **named)
        except Disturbed:
            raise
        except Refused as refused:
            unusable = Unusable(f"{what}: {refused.said or refused}")
            unusable.whose = getattr(getattr(call, "__self__", None), "who", "")
            raise unusable from refused

    # --- one call of both ---

    def call(self, batch, seq, kinds, timed=False, beside=False):
        """Seconds of the baseline, of the module and, where asked for, of those beside, for one
        fresh input; where they count, in random order. Refuses a result that is wrong."""
        where = f"at sequence length {seq}, batch {batch}"
        return self._turns((batch, seq, self.options.n_embd), where, kinds, timed, beside)

    def _turns(self, shape, where, kinds, timed, beside):
        x, request = self._draw(shape, kinds)
        every = [self.baseline, self.candidate, *(self.beside if timed or beside else [])]
        order = list(every)
        # Of short calls the time depends on who ran last: each gets another call ahead, with
        # other inputs.
        ahead = timed and self.usual < WARMED and self._draw(shape, {})
        if timed:
            self.dice.shuffle(order)
        seconds, results = {}, {}
        for process in order:
            left = self._strays(self.known) if timed else set()
            if ahead:
                self._run(process, where, timed, *ahead)
                left |= process.left
            self._blank(process, shape)
            seconds[process], number = self._run(process, where, timed, x, request)
            if timed and process is self.candidate and left | process.left:
                raise Refused("its process worked outside of the timed call: it left another one")
            if process in self.beside:
                continue
            results[process] = self._fetched(process, shape, where, {**request, "sum": number})
        self.usual = max(self.usual, seconds[self.baseline])
        self._compare(where, kinds, request, results[self.baseline], results[self.candidate])
        return [seconds[process] for process in every]

    def _blank(self, process, shape):
        process.outputs.view(shape).fill_(torch.nan)

    def _draw(self, shape, kinds):
        """A fresh input and the request for it. On CUDA the request says how to draw it there."""
        self.reseed()
        if self.options.device != "cpu":
            seed, key = self.dice.getrandbits(63), self.dice.getrandbits(31)
            return None, {"shape": shape, "kinds": kinds, "seed": seed, "key": key}
        x = torch.empty(shape).normal_(generator=self.generator)
        _judge_child.shape_entries(x, kinds)
        return x, {"shape": shape}

    def _run(self, process, where, timed, x, request):
        if x is not None:
            self.inputs.view(x.shape, x.dtype).copy_(x)
        if process is not self.candidate:
            return self._of_trusted(process, where, request)
        first = self.options.call_limit or FIRST_LIMIT[self.options.device.partition(":")[0]]
        limit = (TIMED_LIMIT if timed else first) + 20 * self.usual
        answer = process.ask(self.RUN, where, limit, **request)
        if not (x is None or self.inputs.sealed or self.inputs.view(x.shape, x.dtype).equal(x)):
            raise Refused(f"it wrote to its input {where}")
        return answer

    def _of_trusted(self, process, where, request):
        what = f"{process.who} cannot be called {where}"
        return self._usable(what, process.ask, self.RUN, where, BASELINE_LIMIT, **request)

    def _fetched(self, process, shape, where, request, dtype=torch.float32):
        """A copy of its result. On CUDA it comes now, and must be what the reply vouched for."""
        if self.options.device != "cpu":
            process.ask("fetch", where, TIMED_LIMIT)
        result = process.outputs.view(shape, dtype).clone()
        process.look_still()
        if "sum" in request and self.options.device != "cpu":
            if _judge_child.checksum(result, request["key"]) != request["sum"]:
                raise Refused(f"its result was not there when it replied {where}")
        return result

    def _compare(self, where, kinds, request, expected, got):
        o = self.options
        batch, seq, width = expected.shape
        plain = [n for n in range(batch) if n not in kinds]
        entries = sorted([*kinds, *self.dice.sample(plain, min(len(plain), 1 + len(plain) // 16))])
        exact_request = {**request, "entries": entries, "exact": True}
        self.baseline.outputs.view((len(entries), seq, width), torch.float64).fill_(torch.nan)
        self._of_trusted(self.baseline, f"{where}, in float64", exact_request)
        exact = self._fetched(
            self.baseline, (len(entries), seq, width), where, exact_request, torch.float64
        )
        self.compared = True
        difference = _largest(got - expected)
        self._note("max_diff", difference[plain])
        mine, its = _largest(expected[entries] - exact), _largest(got[entries] - exact)
        is_plain = torch.tensor([n not in kinds for n in entries])
        self._note("float64_diff", its[is_plain])
        self._note("baseline_float64_diff", mine[is_plain])
        if not torch.isfinite(got).all():
            raise Refused(f"wrong result {where}: NaN, infinite or not written")
        if not (difference[plain] < o.tolerance).all():
            worst = difference[plain].max().item()
            raise Refused(f"wrong result {where}: off by {worst:.1e} from the baseline")
        for n, entry in enumerate(entries):
            kind = kinds.get(entry)
            # Logits grow with the square of the inputs, and with them what their rounding adds.
            scale = _judge_child.LARGE**2 if kind == "large" else 1.0
            limit = max(o.tolerance * scale, EXACTLY * mine[n].item())
            if not its[n] <= limit:
                words = f" with {kind} inputs" if kind else ""
                raise Refused(
                    f"wrong result {where}{words}: off by {its[n]:.1e} from float64,"
                    f" allowed {limit:.1e}"
                )

    def _note(self, name, differences):
        """Keeps the largest; NaN, which compares with nothing, is larger than any."""
        for value in differences.tolist():
            if self.seen[name] == self.seen[name] and not value <= self.seen[name]:
                self.seen[name] = value

    # --- what is asked for ---

    def _kinds(self, batch):
        """Entries that are not plain normal numbers: about one in sixteen."""
        count = max(1, batch // 16) if batch > 1 else self.dice.randrange(8) == 0
        return {n: self.dice.choice(SPECIAL) for n in self.dice.sample(range(batch), count)}

    def hidden_cases(self):
        """(batch, seq, kinds): shapes that were not asked for; the module must be right there
        too. None is larger than what was asked for."""
        o = self.options
        longest = o.max_seqlen
        odd = self.dice.randrange(longest) // 2 * 2 + 1

        def fits(seq, most):
            return max(1, min(most, o.batch * o.seq // seq))

        shapes = [(fits(1, 3), 1), (fits(longest, 2), longest), (fits(odd, 3), odd)]
        for _ in range(o.trials):
            seq = 1 + self.dice.randrange(longest)
            shapes.append((self.dice.randint(1, fits(seq, o.batch + 1)), seq))
        cases = [(batch, seq, self._kinds(batch)) for batch, seq in shapes]
        seq = min(longest, 2 + self.dice.randrange(32))
        cases += [(1, seq, {0: kind}) for kind in SPECIAL]
        self.dice.shuffle(cases)
        return cases

    def check(self):
        """The hidden shapes."""
        for case in self.hidden_cases():
            self.call(*case)

    def time(self):
        """[samples of the baseline, of the module, of those beside]: seconds a call, without the
        request. Each sample has fresh inputs for each call; hidden shapes come in between."""
        o = self.options
        end = time.monotonic() + WARM_UP
        warm = 0
        while warm < 2 or time.monotonic() < end:
            every = self.call(o.batch, o.seq, self._kinds(o.batch), beside=True)
            warm += 1
        calls = min(8, max(1, round(SHORT / min(every))))
        pairs, requests = [], []
        between = self.hidden_cases()[: o.rounds]
        for n in range(o.rounds):
            some = []
            for _ in range(calls):
                some.append(self.call(o.batch, o.seq, self._kinds(o.batch), timed=True))
                requests.append(self._request_time())
            pairs.append([statistics.median(one) for one in zip(*some, strict=True)])
            if n < len(between) and n % 4 == 0:
                self.call(*between[n])
        # At most half is subtracted: a module may have made its requests shorter than these.
        return [[max(t - min(requests), t / 2) for t in one] for one in zip(*pairs, strict=True)]

    def _request_time(self):
        """Of a request for nothing, by the baseline's process: what no module can make shorter.
        Inputs that are drawn, results that are copied and checksums count for both: a module could
        do without them."""
        what = f"{self.baseline.who} does not answer"
        return self._usable(what, self.baseline.ask, "nothing", "without a call", BASELINE_LIMIT)[0]


def _largest(differences):
    """Of each entry of a batch, as float64; NaN where there is one."""
    return differences.abs().double().amax(dim=(1, 2))
