"""What a process of the judge gives up before it loads somebody's module (Linux, by ctypes).

    python _sandbox.py DEVICE REQUESTS REPLIES INPUTS OUTPUTS RIGHTS    (the rest: _judge_child.py)

It is a fence against accidents and against cheating, not a border against an attacker. Landlock
says which files are read and written, seccomp forbids sockets, other processes' memory and, for a
module that names no compiler, other processes. What the kernel lacks is not held: gaps() names it.
docs/security.md has the whole list.
"""

import ctypes
import glob
import json
import os
import re
import resource
import signal
import site
import struct
import sys
import tempfile
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
_PR_GET_DUMPABLE, _PR_GET_CHILD_SUBREAPER = 3, 37
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same numbers on every machine
_DEVICES = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"]

# What every process reads: shared libraries, and what the machine is. Symbolic links lead to these.
_PROGRAMS = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"]
_PROGRAMS += ["/nix/store", "/gnu/store"]
_SYSTEM = list(_PROGRAMS)
_SYSTEM += ["/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime"]
_SYSTEM += ["/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys/vm"]
_SYSTEM += ["/sys/devices/system"]
_DRIVER = ["/proc/driver", "/proc/devices", "/proc/modules", "/proc/sys", "/proc/version"]
_DRIVER += ["/sys", "/etc/nvidia"]
_NEVER_WHOLE = ["/", "/home", "/root", "/tmp", "/var", "/var/tmp", "/etc", "/proc", "/sys", "/run"]
_NEVER_WHOLE += ["/mnt", "/dev", "/media", "/srv"]

# A module with one of these words may start the system's programs, as the compilers of torch and
# Triton do (g++, as, ld, ptxas, openssl, ...). They inherit all else that is given up here.
_NAMES_A_COMPILER = re.compile(r"compile|triton|inductor|cpp_extension|load_inline|attune\.linear")

# Numbers of system calls: x86-64, aarch64 (None: it has no such call).
_PROCESSES = [(57, None), (58, None), (59, 221), (322, 281)]  # fork, vfork, execve, execveat
_FORBIDDEN = [
    (41, 198), (42, 203), (49, 200), (50, 201),  # socket, connect, bind, listen
    (46, 211), (307, 269),  # sendmsg, sendmmsg, which name a receiver
    (425, 425), (426, 426), (427, 427),  # io_uring, which does all that without these calls
    (101, 117), (310, 270), (311, 271), (438, 438), (312, 272),  # ptrace, others' memory and files
    (29, 194), (68, 186), (64, 190), (240, 180),  # shmget, msgget, semget, mq_open
    (248, 217), (249, 218), (250, 219),  # add_key, request_key, keyctl
    (321, 280), (298, 241), (323, 282),  # bpf, perf_event_open, userfaultfd
    (165, 40), (272, 97), (308, 268), (161, 51), (155, 41), (304, 265),  # mount, unshare, ...
]  # fmt: skip
_SENDTO, _CLONE, _CLONE3, _SECCOMP = (44, 206), (56, 220), (435, 435), (317, 277)
_CLONE_THREAD, _SPEC_ALLOW = 0x10000, 4
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_ALLOW, _REFUSE, _MISSING, _KILL = 0x7FFF0000, 0x00050000 | 1, 0x00050000 | 38, 0x80000000

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


def _abi():
    null = ctypes.c_void_p(None)
    return _libc.syscall(_CREATE_RULESET, null, ctypes.c_size_t(0), ctypes.c_uint32(1))


def _landlock(writable, readable, programs):
    """Nothing is read, written or run but what lies below these, no TCP, no signals and no looking
    into the memory of processes outside; as much of that as the kernel knows. readable=None: all.
    False where it knows nothing."""
    abi = _abi()
    if abi < 1:
        return False
    run, write, read, make = 1, 1 << 1, 0b11 << 2, 0b1_1111_1111 << 4
    refer, truncate = 1 << 13, 1 << 14
    files = write | make | (refer if abi >= 2 else 0) | (truncate if abi >= 3 else 0)
    allowed = [(path, files | read) for path in [*writable, *_DEVICES, *_gpu_files()]]
    if readable is not None:
        allowed += [(path, read) for path in readable]
        allowed += [(path, run | read) for path in programs]
    handled = files if readable is None else files | read | run
    rules = _Ruleset(handled, 0b11 if abi >= 4 else 0, 0b11 if abi >= 6 else 0)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    ruleset = _libc.syscall(
        _CREATE_RULESET, ctypes.byref(rules), ctypes.c_size_t(size), ctypes.c_uint32(0)
    )
    if ruleset < 0:
        return False
    for path, rights in allowed:
        if not os.path.exists(path):
            continue
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        if not os.path.isdir(path):
            rights &= run | write | truncate | 1 << 2
        rule = _Beneath(rights & handled, place)
        _libc.syscall(_ADD_RULE, ruleset, 1, ctypes.byref(rule), ctypes.c_uint32(0))
        os.close(place)
    done = _libc.syscall(_RESTRICT_SELF, ruleset, ctypes.c_uint32(0))
    os.close(ruleset)
    return done == 0


def _gpu_files():
    return [*glob.glob("/dev/nvidia*"), *glob.glob("/dev/dri/*")]


def _filter(compiles, device):
    """The system calls that are refused, as a program of the kernel's: (code, if, else, value)."""
    column, machine = _MACHINES[os.uname().machine]
    load, equal, some, more, give = 0x20, 0x15, 0x45, 0x35, 0x06
    code = [(load, 0, 0, 4), (equal, 1, 0, machine), (give, 0, 0, _KILL), (load, 0, 0, 0)]
    if column == 0:  # the calls of the x32 ABI have a bit of their own
        code += [(more, 0, 1, 1 << 30), (give, 0, 0, _KILL)]

    def argument(number, upper=0):  # its lower half, or the upper one
        return (load, 0, 0, 16 + 8 * number + 4 * upper)

    # A connected socket names no receiver: that is what socketpair makes.
    code += [(equal, 0, 6, _SENDTO[column]), argument(4), (equal, 0, 3, 0)]
    code += [argument(4, 1), (equal, 0, 1, 0), (give, 0, 0, _ALLOW), (give, 0, 0, _REFUSE)]
    refused = [pair[column] for pair in _FORBIDDEN]
    if device != "cpu":  # the driver makes a local socket, or one of the kernel's; it needs no peer
        refused.remove((41, 198)[column])
        code += [(equal, 0, 5, (41, 198)[column]), argument(0), (equal, 2, 0, 1), (equal, 1, 0, 16)]
        code += [(give, 0, 0, _REFUSE), (give, 0, 0, _ALLOW)]
    if not compiles:
        refused += [pair[column] for pair in _PROCESSES if pair[column] is not None]
        code += [(equal, 0, 1, _CLONE3[0]), (give, 0, 0, _MISSING)]  # the C library takes clone
        code += [(equal, 0, 4, _CLONE[column]), argument(0), (some, 0, 1, _CLONE_THREAD)]
        code += [(give, 0, 0, _ALLOW), (give, 0, 0, _REFUSE)]
    for number in refused:
        code += [(equal, 0, 1, number), (give, 0, 0, _REFUSE)]
    return [*code, (give, 0, 0, _ALLOW)]


def _seccomp(compiles, device):
    """False where the kernel, or this file, does not know it."""
    if os.uname().machine not in _MACHINES:
        return False
    code = _filter(compiles, device)
    raw = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in code))
    program = struct.pack("@HxxxxxxP", len(code), ctypes.addressof(raw))
    number = ctypes.c_long(_SECCOMP[_MACHINES[os.uname().machine][0]])
    for flags in (_SPEC_ALLOW, 0):  # with it, older kernels do not slow the processor down
        if _libc.syscall(number, ctypes.c_long(1), ctypes.c_long(flags), program) == 0:
            return True
    return False


def gaps():
    """What this kernel cannot hold, in words; none where it holds all."""
    found = []
    if _abi() < 1:
        found.append("no Landlock: a module reads and writes the user's files")
    elif _abi() < 6:
        found.append(f"Landlock {_abi()}, before 6: a module signals other processes of the user")
    if os.uname().machine not in _MACHINES or _libc.prctl(21, 0, 0, 0, 0) < 0:  # PR_GET_SECCOMP
        found.append("no seccomp: a module has sockets and starts processes")
    return found


def _too_wide(path):
    """A folder with somebody's files in it, beside those that are meant."""
    path = os.path.realpath(path)
    home = os.path.realpath(os.path.expanduser("~"))
    wide = [*_NEVER_WHOLE, os.path.realpath(tempfile.gettempdir())]
    return path in wide or path == home or home.startswith(path + os.sep)


def rights(module, device):
    """What the process of this module is allowed: {"read": paths, "run": paths, "compiles": bool}.
    By the judge: it knows its own Python, and what lies where."""
    module = Path(module).resolve()
    compiles = bool(_NAMES_A_COMPILER.search(module.read_text(errors="replace")))
    own = Path(__file__).resolve().parent
    folders = [sys.prefix, sys.base_prefix, sys.exec_prefix, *site.getsitepackages()]
    folders += [site.getusersitepackages(), own.parent, os.environ.get("ATTUNE_BUILD_DIR")]
    folders += [own.parent.parent / "build", *python_path(module)]
    folders += os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    folders += [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    run = [str(folder) for folder in folders if folder and not _too_wide(folder)]
    read = [*run, str(module), *_SYSTEM, *(_DRIVER if device != "cpu" else [])]
    if not _too_wide(module.parent):
        read.append(str(module.parent))
    return {"read": read, "run": [*run, *_PROGRAMS] if compiles else [], "compiles": compiles}


def python_path(module):
    """sys.path for a module: the current folder only where the module lies in it."""
    here, given = os.getcwd(), os.environ.get("PYTHONPATH", "").split(os.pathsep)
    keep = str(Path(module).resolve().parent)
    return [p for p in sys.path if p and (p != here or p in (keep, *given))]


def enter(writable, limit_memory, readable=None, programs=(), compiles=True, device="cpu"):
    """Of the calling process and all that it starts. It dies with its parent. Whether Landlock and
    seccomp hold."""
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
    files = _landlock(writable, readable, programs)
    return _seccomp(compiles, device) and files


def _lower(what, value):
    hard = resource.getrlimit(what)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(what, (value, value))


if __name__ == "__main__":
    # By its file and not by -m: the package loads numpy, which starts threads, and what is given up
    # here is given up by the calling thread and those that it starts later.
    sys.path.pop(0)
    device, *descriptors, allowed = sys.argv[1:]
    allowed = json.loads(allowed)
    # CUDA names its threads by files of its own process.
    own = [] if device == "cpu" else ["/proc/self"]
    enter(
        [os.environ["TMPDIR"], *own],
        limit_memory=device == "cpu",
        readable=allowed["read"],
        programs=allowed["run"],
        compiles=allowed["compiles"],
        device=device.partition(":")[0],
    )
    from attune import _judge_child

    _judge_child.serve(device, *(int(n) for n in descriptors))
