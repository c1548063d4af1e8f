"""What a process of the judge gives up before it loads somebody's module (Linux, by ctypes).

    python _sandbox.py DEVICE REQUESTS REPLIES INPUTS OUTPUTS      (the rest: _judge_child.py)

It is a fence against accidents and against cheating, not a border against an attacker: the process
keeps the user's rights to read files and to talk through sockets of other kinds than TCP. Where the
kernel has no Landlock, it keeps the right to write too.
"""

import ctypes
import glob
import os
import resource
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
_PR_GET_DUMPABLE, _PR_GET_CHILD_SUBREAPER = 3, 37
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same numbers on every machine
_DEVICES = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"]

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option, value):
    zero = ctypes.c_ulong(0)
    return _libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero)


def guard(on):
    """The judge's side. Processes below this one that lose their parent become its children, so
    that none is lost from sight; others of the same user cannot look into its memory. Takes what
    to set, True or what it returned, and returns what was set before."""
    adopts = ctypes.c_int(0)
    _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.addressof(adopts))
    before = adopts.value, _prctl(_PR_GET_DUMPABLE, 0)
    adopt, dumpable = (1, 0) if on is True else on
    _prctl(_PR_SET_CHILD_SUBREAPER, adopt)
    _prctl(_PR_SET_DUMPABLE, dumpable)
    return before


def scheduling(thread):
    """Policy, priority and all else that sched_getattr tells."""
    number = {"x86_64": 315, "aarch64": 275}[os.uname().machine]
    known = ctypes.create_string_buffer(64)
    _libc.syscall(number, thread, known, ctypes.c_uint32(len(known)), ctypes.c_uint32(0))
    return known.raw


def _drop_capabilities():
    """Root's: those by which a process reads another's memory or gets ahead of it in the queue.
    Files stay as readable as they were."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable, twice 32 bits
    if _libc.capget(header, data) == 0:
        keep = data[1] & (1 << _CAP_DAC_OVERRIDE | 1 << _CAP_DAC_READ_SEARCH)
        _libc.capset(header, (ctypes.c_uint32 * 6)(keep, keep, 0, 0, 0, 0))


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32)]


def _landlock(writable):
    """Nothing is written but below `writable`, no TCP, no signals and no looking into the memory of
    processes outside; as much of that as the kernel knows. False where it knows nothing."""
    null = ctypes.c_void_p(None)
    abi = _libc.syscall(_CREATE_RULESET, null, ctypes.c_size_t(0), ctypes.c_uint32(1))
    if abi < 1:
        return False
    write, make, refer, truncate = 1 << 1, 0b1_1111_1111 << 4, 1 << 13, 1 << 14
    files = write | make | (refer if abi >= 2 else 0) | (truncate if abi >= 3 else 0)
    rules = _Ruleset(files, 0b11 if abi >= 4 else 0, 0b11 if abi >= 6 else 0)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    ruleset = _libc.syscall(
        _CREATE_RULESET, ctypes.byref(rules), ctypes.c_size_t(size), ctypes.c_uint32(0)
    )
    if ruleset < 0:
        return False
    for path in [*writable, *_DEVICES, *glob.glob("/dev/nvidia*"), *glob.glob("/dev/dri/*")]:
        if not os.path.exists(path):
            continue
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
        allowed = files if os.path.isdir(path) else files & (write | truncate)
        rule = _Beneath(allowed, folder)
        _libc.syscall(_ADD_RULE, ruleset, 1, ctypes.byref(rule), ctypes.c_uint32(0))
        os.close(folder)
    done = _libc.syscall(_RESTRICT_SELF, ruleset, ctypes.c_uint32(0))
    os.close(ruleset)
    return done == 0


def enter(writable, limit_memory):
    """Of the calling process and all that it starts. It dies with its parent."""
    parent = os.getppid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    try:
        Path("/proc/self/oom_score_adj").write_text("1000")  # rather this one than the user's
    except OSError:
        pass
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _lower(resource.RLIMIT_FSIZE, 1 << 30)
    if limit_memory:  # not with CUDA, which maps far more than it uses
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        _lower(resource.RLIMIT_DATA, memory // 2)  # the other half: the baseline, the judge
    _prctl(_PR_SET_DUMPABLE, 0)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _drop_capabilities()
    return _landlock(writable)


def _lower(what, value):
    hard = resource.getrlimit(what)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(what, (value, value))


if __name__ == "__main__":
    # By its file and not by -m: the package loads numpy, which starts threads, and what is given up
    # here is given up by the calling thread and those that it starts later.
    sys.path.pop(0)
    device, *descriptors = sys.argv[1:]
    # CUDA names its threads by files of its own process.
    own = [] if device == "cpu" else ["/proc/self"]
    enter([os.environ["TMPDIR"], *own], limit_memory=device == "cpu")
    from attune import _judge_child

    _judge_child.serve(device, *(int(n) for n in descriptors))
