"""python -m attune.evaluate: what its documents show, and what its judge refuses. The modules in
modules/ are small programs, most of which try to be called right or fast without being so."""

import json
import mmap
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from attune import _judge, _judge_child, _judge_words, _module_verdict, _sandbox, evaluate

MODULES = Path(__file__).parent / "modules"
MANIFEST = json.loads((MODULES / "manifest.json").read_text())
SMALL = MANIFEST["options"]
PLAIN = "from attune.examples.module import Model as Plain\nclass Model(Plain):\n"


@pytest.fixture(autouse=True)
def on_one_processor(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # both processes get it; others are busy here too


def judged(path, capfd, *options):
    """(exit code, result, everything that reached the terminal)"""
    code = evaluate.main([*SMALL, "--path", str(path), "--json", "-", *options])
    said = capfd.readouterr()
    return code, json.loads(said.out), said.out + said.err


def test_ours_is_right_and_that_is_printed_before_a_disk_is_full(capfd):
    assert evaluate.main([*SMALL, "--json", "/dev/full"]) == 2
    said = capfd.readouterr()
    assert "/dev/full cannot be written" in said.err
    text = said.out
    assert re.search(r"={60}\nFINAL RESULTS\n={60}\nCorrectness: PASS\n", text)
    assert re.search(r"Max difference: [\d.e-]+ \(allowed 1e-05\)\n", text)
    assert re.search(r"From float64: [\d.e-]+ \(baseline [\d.e-]+\)\n", text)
    assert re.search(r"Baseline time: [\d.]+ ms\nOptimized time: [\d.]+ ms\n", text)
    assert re.search(r"Speedup: [\d.]+x \([\d.]+\.\.[\d.]+\)\nScore: [\d.]+\n", text)


def full(*values):
    return pytest.param(*values, marks=pytest.mark.full)


QUICK = {"patches", "one_length", "later", "early_reply", "writes_input", "exits", "hidden_process"}
QUICK |= {"wakes_itself", "changes_later", "incremental", "writes_files", "reaches_out"}


def fixtures(passes):
    """Those of the manifest that pass, or that do not; few in the quick tier."""
    found = []
    for one in MANIFEST["fixtures"]:
        if (one["expected"] == ["ok"]) == passes:
            name = one["file"].removesuffix(".py")
            marks = () if name in QUICK else pytest.mark.full
            found.append(pytest.param(one, id=name, marks=marks))
    return found


def test_the_manifest_has_every_module():
    named = {one["file"]: one for one in MANIFEST["fixtures"]}
    assert set(named) == {path.name for path in MODULES.glob("*.py")}
    assert len(named) == len(MANIFEST["fixtures"])
    assert {name + ".py" for name in QUICK} <= set(named)
    assert all(one["kind"] and one["expected"] for one in MANIFEST["fixtures"])
    assert all(one.get("reason") or one["expected"] == ["ok"] for one in MANIFEST["fixtures"])


@pytest.mark.parametrize("one", fixtures(passes=False))
def test_is_refused(one, capfd):
    options = evaluate.parse(
        [*SMALL, *one.get("options", []), "--path", str(MODULES / one["file"])]
    )
    try:
        report = _module_verdict.verdict(*evaluate.judged(options), options)
    except _judge.Unusable as error:
        report = _module_verdict.not_opened(error, options)
    assert report["verdict"] in one["expected"] and not report["all_correct"]
    assert report["combined_score"] == 0 and not report["shapes"]
    assert re.search(one["reason"], report["why"])


@pytest.mark.parametrize("one", fixtures(passes=True))
def test_passes(one, capfd):
    if "fails where" in one["kind"] and not held():
        pytest.skip("this kernel has no Landlock, or no seccomp")
    code, result, _ = judged(MODULES / one["file"], capfd, *one.get("options", []))
    assert code == 0 and result["correct"], result.get("reason", result)
    assert result["max_diff"] < 1e-5 and result["float64_diff"] < 1e-5
    assert not (MODULES / "written_by_a_module").exists()


def test_only_an_empty_request_is_subtracted(monkeypatch, capfd):
    asked, request_time = [], _judge.Judge._request_time
    send = _judge.Process.send

    def noted(self, do, where, **what):
        asked.append((self.who, do, what))
        send(self, do, where, **what)

    def timed(self):
        del asked[:]
        seconds = request_time(self)
        assert asked == [("the baseline", "nothing", {})] and seconds > 0
        return seconds

    monkeypatch.setattr(_judge.Process, "send", noted)
    monkeypatch.setattr(_judge.Judge, "_request_time", timed)
    code, result, _ = judged(MODULES / "../../../python/attune/examples/module.py", capfd)
    assert code == 0, result


@pytest.mark.full
def test_a_copy_that_is_left_out_brings_little(capfd):
    for _ in range(3):  # other work on the machine may look like more
        code, result, _ = judged(MODULES / "writes_in_place.py", capfd, "--rounds", "9")
        assert code == 0, result
        if result["speedup"] < 1.15:
            break
    assert result["speedup"] < 1.15


def held():
    code = "import sys, _sandbox; sys.exit(not _sandbox.enter([], False))"
    folder = Path(evaluate.__file__).parent
    return subprocess.run([sys.executable, "-c", code], cwd=folder).returncode == 0


def test_what_cannot_be_stopped_is_not_tried(capfd):
    code, result, _ = judged(MODULES / "cannot_stop.py", capfd)
    assert code == 2 and "its process cannot be stopped" in result["error"]


def test_no_draw_is_known_from_another():
    judge = _judge.Judge(evaluate.parse(SMALL))
    seeds = set()
    for _ in range(3):
        x, _ = judge._draw((1, 2, 32), {})
        seeds.add(judge.generator.initial_seed())
        again = torch.empty(1, 2, 32).normal_(generator=judge.generator)
        assert not x.equal(again)
    assert len(seeds) == 3


def test_a_hang_ends(capfd):
    code, result, _ = judged(MODULES / "hangs.py", capfd, "--call-limit", "0.5")
    assert code == 1 and re.search(r"killed after \d+ s at sequence length", result["reason"])


@pytest.mark.parametrize("limit", ["0", "-1", "nan", "inf"])
def test_no_limit_is_refused(limit, capfd):
    with pytest.raises(SystemExit):
        evaluate.parse([*SMALL, f"--call-limit={limit}"])
    assert "--call-limit is" in capfd.readouterr().err


def test_a_verdict_cannot_be_printed(capfd):
    assert evaluate.main([*SMALL, "--path", str(MODULES / "forged.py")]) == 1
    said = capfd.readouterr()
    assert said.out.count("FINAL RESULTS") == 1 and "Correctness: FAIL" in said.out
    assert "Reason: wrong result" in said.out and "Score: 0.0000" in said.out
    for text in (said.out, said.err):
        assert "PASS" not in text and "Speedup" not in text and "Score: 99" not in text


@pytest.mark.parametrize(
    "text,words,code",
    [
        ("x = 1", "defines no Model", 2),
        ("raise OSError('no')", r"cannot be imported: OSError at line 1 \(`raise OSError", 2),
        full("x = 1\nx = (", r"SyntaxError at line 2 \(`x = \(`\): '\(' was never closed", 2),
        full("import sys; sys.exit(0)", "cannot be imported: SystemExit at line 1", 2),
        full(
            "x = 1\nimport os; os.abort()",
            "cannot be imported: Fatal Python error: Aborted at line 2",
            2,
        ),
        full("Model = 3", "TypeError", 2),
        full(
            "import torch\nModel = lambda n_embd: torch.nn.Linear(n_embd, n_embd)",
            "no parameters weight",
            2,
        ),
        full(
            PLAIN + "    def forward(self, x): raise SystemExit(0)",
            "exception at .*: SystemExit",
            1,
        ),
        full(PLAIN + "    def forward(self, x): return x, x", "it gives a tuple", 1),
        full(
            PLAIN + "    def forward(self, x): return x @ x.new_zeros(3, 5)",
            r"RuntimeError at line 3 \(`def forward.*\): .*shapes? .*",
            1,
        ),
        full(PLAIN + "    def forward(self, x): raise OSError('\\n\\x1b[2J' * 999)", r"OSError", 1),
    ],
)
def test_what_a_module_says_reaches_the_terminal(tmp_path, capfd, text, words, code):
    (tmp_path / "m.py").write_text(text)
    assert evaluate.main([*SMALL, "--path", str(tmp_path / "m.py")]) == code
    said = capfd.readouterr()
    assert re.search(words, said.err) and not re.search(words, said.out)
    assert len(said.err) < 1000 and said.err.count("\n") == 1 and "\x1b" not in said.err


SPY = """
import sys
SECRET = "".join(chr(n + 1) for n in [114, 100, 98, 113, 100, 115])
class Loud(Exception): pass
Loud.__name__ = SECRET
class Text(RuntimeError):
    def __str__(self): raise ValueError(SECRET)
def speak(*_, **__):
    print(SECRET, file=sys.stderr, flush=True)
    {how}
"""


@pytest.mark.parametrize(
    "how,words",
    [
        ("raise RuntimeError(SECRET)", "RuntimeError at line"),
        ("raise Loud(SECRET)", "Exception at line"),
        full("raise Text()", "RuntimeError"),
        full("raise KeyError(SECRET)", "KeyError at line"),
        full("raise NameError(f\"name '{SECRET}' is not defined\")", "NameError at line"),
        full("import os; os._exit(3)", "exit code 3"),
        full("import os; os.abort()", "Aborted"),
    ],
)
@pytest.mark.parametrize("where", ["speak()\n", "Model = speak\n"])
def test_no_text_of_a_module_is_repeated(tmp_path, capfd, how, words, where):
    (tmp_path / "m.py").write_text(SPY.replace("{how}", how) + where)
    code = evaluate.main([*SMALL, "--path", str(tmp_path / "m.py"), "--json", "-"])
    said = capfd.readouterr()
    assert code == 2 and re.search(words, json.loads(said.out)["error"])
    assert "secret" not in said.out + said.err


def test_messages_of_torch_and_python_are_repeated(tmp_path):
    (tmp_path / "m.py").write_text("a = 1\nblock(a)\n")
    shown = _judge_words.shown
    path = tmp_path / "m.py"
    assert shown("NameError|2|name 'block' is not defined", path) == (
        "NameError at line 2 (`block(a)`): name 'block' is not defined"
    )
    assert shown("NameError|2|name 'hunter2' is not defined", path) == (
        "NameError at line 2 (`block(a)`)"
    )
    assert shown("RuntimeError|1,2|shape '[2, -1]' is invalid for input of size 3", path) == (
        "RuntimeError at line 2 (`block(a)`), called at line 1: "
        "shape '[2, -1]' is invalid for input of size 3"
    )
    assert shown("hunter2|9|x", path) == "an exception" and shown("hunter2", path) == ""


def test_a_module_has_no_compiler_unless_it_names_one(tmp_path):
    plain, compiled = MODULES / "half.py", MODULES / "compiled.py"
    rights = [_sandbox.rights(path, "cpu") for path in (plain, compiled)]
    assert [one["compiles"] for one in rights] == [False, True]
    assert not rights[0]["run"] and "/usr" in rights[1]["run"]
    assert all(str(MODULES) in one["read"] and str(MODULES) not in one["run"] for one in rights)
    lonely = tmp_path / "m.py"
    lonely.write_text("")
    assert str(lonely) in _sandbox.rights(lonely, "cpu")["read"]
    for wide in ("/", "/tmp", "/home", "/etc", os.path.expanduser("~")):
        assert _sandbox._too_wide(wide) and wide not in rights[0]["read"]


@pytest.mark.parametrize("compiles,device", [(False, "cpu"), (True, "cpu"), (False, "cuda")])
def test_sockets_and_processes_are_filtered(compiles, device):
    """One call after the other, in a process that has only the filter of a module."""
    code = f"""
import _sandbox, ctypes, os, socket, threading
if not _sandbox.enter([], False, None, (), {compiles}, {device!r}):
    raise SystemExit(3)
def works(what):
    try:
        what()
        return True
    except PermissionError:
        return False
def fork():
    if os.fork() == 0:
        os._exit(0)
assert not works(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
assert not works(lambda: socket.socket(socket.AF_INET6, socket.SOCK_STREAM))
assert works(lambda: socket.socket(socket.AF_UNIX)) == ({device!r} == "cuda")
assert works(fork) == {compiles}
a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
assert works(lambda: a.send(b"x")) and not works(lambda: a.sendto(b"x", "/dev/log"))
assert not works(lambda: a.sendmsg([b"x"])) and not works(lambda: a.connect("/dev/log"))
thread = threading.Thread(target=lambda: None)
thread.start()
thread.join()
libc = ctypes.CDLL(None, use_errno=True)
assert libc.ptrace(0, 0, None, None) == -1
high = libc.mmap  # an address whose lower half is 0 is an address too
high.restype, high.argtypes = ctypes.c_void_p, [ctypes.c_void_p] + [ctypes.c_long] * 5
if high(1 << 32, 4096, 3, 0x100022, -1, 0) == 1 << 32:
    ctypes.memmove(1 << 32, b"\\x01\\x00/dev/log", 10)
    libc.sendto.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_long, ctypes.c_int]
    libc.sendto.argtypes += [ctypes.c_void_p, ctypes.c_int]
    assert libc.sendto(a.fileno(), b"x", 1, 0, 1 << 32, 10) == -1 and ctypes.get_errno() == 1
"""
    folder = Path(evaluate.__file__).parent
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    if done.returncode == 3:
        pytest.skip("this kernel has no Landlock, or no seccomp")
    assert done.returncode == 0, done.stderr


def test_a_missing_file_is_named(tmp_path, capfd):
    assert evaluate.main([*SMALL, "--path", str(tmp_path / "none.py")]) == 2
    assert "none.py is not a Python file" in capfd.readouterr().err


def below(process):
    """The processes that it started."""
    return list(_judge._below(_judge._parents(os.listdir("/proc")), {process}))


@pytest.mark.parametrize("end,code", [(signal.SIGINT, 130), full(signal.SIGKILL, -9)])
def test_its_processes_end_with_it(tmp_path, end, code):
    module = tmp_path / "m.py"
    module.write_text("import time; time.sleep(1000)\n" + PLAIN + "    pass")
    command = [sys.executable, "-m", "attune.evaluate", *SMALL, "--path", str(module)]
    environment = {**os.environ, "PYTHONPATH": str(Path(evaluate.__file__).parents[1])}
    environment["TMPDIR"] = str(tmp_path)  # which SIGKILL leaves as it is
    run = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        # What runs in the background of a script is started deaf to it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    until = time.monotonic() + 60
    while len(below(run.pid)) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    children = below(run.pid)
    time.sleep(0.5)  # they have said whom they die with
    run.send_signal(end)
    said = run.communicate()[1]
    assert run.returncode == code and len(children) == 2 and "Traceback" not in said
    assert end != signal.SIGINT or said.endswith("stopped\n")
    while _judge._parents(map(str, children)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _judge._parents(map(str, children))


def test_inputs_cannot_be_mapped_for_writing():
    memory = _judge.Memory(4096, read_only=True)
    if not memory.sealed:
        pytest.skip("this kernel cannot seal memory that way")
    with pytest.raises(PermissionError):
        mmap.mmap(memory.fd, 4096)
    with pytest.raises(PermissionError):
        os.write(memory.fd, b"x")
    with pytest.raises(PermissionError):
        os.ftruncate(memory.fd, 0)
    mapped = mmap.mmap(memory.fd, 4096, prot=mmap.PROT_READ)
    memory.view((2,)).fill_(1.5)  # the judge still writes
    assert mapped[:4] == b"\x00\x00\xc0\x3f"
    memory.close()


def test_where_memory_cannot_be_sealed_inputs_are_looked_at(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(_judge, "_F_SEAL_FUTURE_WRITE", 1 << 30)
    child = tmp_path / "m.py"
    child.write_text(
        "import mmap, sys\n" + PLAIN + "    def forward(self, x):\n"
        "        out = super().forward(x)\n"
        "        mmap.mmap(int(sys.argv[4]), 4096)[:4] = b'abcd'\n"
        "        return out\n"
    )
    code, result, _ = judged(child, capfd)
    assert code == 1 and "it wrote to its input at" in result["reason"]


def test_hidden_shapes():
    judge = _judge.Judge(evaluate.parse([*SMALL, "--trials", "20"]))
    for _ in range(20):
        cases = judge.hidden_cases()
        lengths = [seq for _, seq, _ in cases]
        assert {1, 64} <= set(lengths) and len(set(lengths)) > 3
        assert all(b == 1 or b * s <= 32 for b, s, _ in cases) and max(lengths) <= 64
        assert {"large", "tiny", "one-hot"} <= {k for _, _, kinds in cases for k in kinds.values()}


def test_nan_is_the_largest_difference():
    judge = _judge.Judge(evaluate.parse(SMALL))
    judge._note("max_diff", torch.tensor([1.0, torch.nan, 2.0]))
    judge._note("max_diff", torch.tensor([3.0]))
    assert evaluate.shown(judge.seen["max_diff"]) == "nan"
    assert torch.isnan(_judge._largest(torch.full((2, 3, 4), torch.nan))).all()


def test_a_checksum_knows_every_bit_and_its_place():
    x = torch.randn(2, 3, 8)
    first = _judge_child.checksum(x, 12345)
    assert first == _judge_child.checksum(x.clone(), 12345) != _judge_child.checksum(x, 12346)
    for n in range(x.numel()):
        other = x.clone()
        other.view(-1)[n] = torch.nextafter(other.view(-1)[n], torch.tensor(9.0))
        assert _judge_child.checksum(other, 12345) != first
    assert _judge_child.checksum(x.flip(0), 12345) != first
    assert _judge_child.checksum(x.flip(2), 12345) != first


@pytest.mark.parametrize(
    "name,code,reason",
    [
        full("one_length", 1, r"wrong result at sequence length (?!16,)"),
        full("../../../python/attune/examples/module", 0, ""),
    ],
)
def test_inputs_that_are_drawn_on_the_device(name, code, reason, capfd):
    """The way of GPUs, on another name of the CPU."""
    got, result, _ = judged(MODULES / f"{name}.py", capfd, "--device", "cpu:0")
    assert got == code and re.search(reason, result.get("reason", ""))


@pytest.mark.gpu
def test_on_a_gpu(monkeypatch, capfd):
    monkeypatch.undo()
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    code, result, _ = judged(evaluate.OPTIMISED, capfd, "--device", "cuda")
    assert code == 0 and result["correct"], result
    for name in ("zeros", "one_length"):
        code, result, _ = judged(MODULES / f"{name}.py", capfd, "--device", "cuda")
        assert code == 1 and "wrong result" in result["reason"]
