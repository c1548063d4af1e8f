"""What the judge repeats of a module's failure: nothing that the module could have chosen freely.

A module's process says `TYPE|LINES|MESSAGE` (told). The module is in that process, so that each of
these can be anything. The judge shows a type that it knows, lines of the file as it reads them
itself, and a message only where it is one of torch's, of Python's or of ours (MESSAGES), with
numbers, and names that stand in the module's text or belong to torch (shown).
"""

import builtins
import functools
import re
import sys
import traceback
from pathlib import Path

MOST_LINES = 8
LINE = 100  # characters of a line of the module

TYPES = {
    one.__name__
    for one in vars(builtins).values()
    if isinstance(one, type) and issubclass(one, BaseException)
}
TYPES |= {"OutOfMemoryError", "AcceleratorError", "OutOfResources", "CompilationError"}
TYPES |= {"BackendCompilerFailed", "InductorError", "Unsupported", "WrongResult", "NotUnderstood"}
CRASHES = "Aborted|Segmentation fault|Bus error|Illegal instruction|Floating-point exception"

# <n>: a number, <list>: numbers, <name>: a known name, <names>: several
MESSAGES = """
it defines no <name>
it gives a <name>, not a tensor
it gives a <name>, without a tensor
it gives (<list>) of <name>, not (<list>) of <name>
the baseline has no parameters <names>
mat1 and mat2 shapes cannot be multiplied (<n>x<n> and <n>x<n>)
mat1 and mat2 must have the same dtype, but got <name> and <name>
expected m1 and m2 to have the same dtype, but got: <name> != <name>
expected scalar type <name> but found <name>
The size of tensor a (<n>) must match the size of tensor b (<n>) at non-singleton dimension <n>
Expected size for first two dimensions of batch2 tensor to be: [<list>] but got: [<list>].
Given normalized_shape=[<list>], expected input with shape [*, <list>], but got input of size[<list>]
shape '[<list>]' is invalid for input of size <n>
Sizes of tensors must match except in dimension <n>. Expected size <n> but got size <n> for tensor number <n> in the list.
view size is not compatible with input tensor's size and stride (at least one dimension spans across two contiguous subspaces). Use .reshape(...) instead.
index <n> is out of bounds for dimension <n> with size <n>
Dimension out of range (expected to be in range of [<n>, <n>], but got <n>)
not enough values to unpack (expected <n>, got <n>)
too many values to unpack (expected <n>)
name '<name>' is not defined
'<name>' object has no attribute '<name>'
module '<name>' has no attribute '<name>'
No module named '<name>'
<name>() got an unexpected keyword argument '<name>'
<name>() takes <n> positional arguments but <n> were given
<name>() missing <n> required positional argument: '<name>'
'<name>' object is not callable
'<name>' object is not subscriptable
unsupported operand type(s) for <operator>: '<name>' and '<name>'
division by zero
invalid syntax
expected ':'
unexpected indent
unmatched '<operator>'
'<operator>' was never closed
unindent does not match any outer indentation level
Torch not compiled with CUDA enabled
"""  # noqa: E501
_PLACES = {
    "<n>": r"-?[0-9]{1,12}",
    "<list>": r"[-0-9, ]{0,120}",
    "<name>": r"(?:[A-Za-z_][\w.]{0,80})",
    "<names>": r"(?:[A-Za-z_][\w., ]{0,200})",
    "<operator>": r"[-+*/@%&|^()\[\]{}<>=]{1,4}",
}


@functools.cache
def _patterns():
    found = []
    for line in MESSAGES.strip().splitlines():
        parts = re.split(r"(<\w+>)", line)
        groups = {"<name>": f"({_PLACES['<name>']})", "<names>": f"({_PLACES['<names>']})"}
        text = "".join(groups.get(p) or _PLACES.get(p) or re.escape(p) for p in parts)
        found.append(re.compile(text))
    return found


@functools.cache
def _vocabulary():
    import torch

    names = set(dir(builtins)) | set(sys.stdlib_module_names) | {"NoneType", "function", "module"}
    for place in (torch, torch.nn, torch.Tensor, torch.nn.functional):
        names |= set(dir(place))
    names |= {"Float", "Double", "Half", "BFloat16", "Int", "Long", "Char", "Byte", "Bool", "c10"}
    names |= {"weight", "bias"}
    return names | {"Model", "ModelNew", "get_inputs", "get_init_inputs", "__init__", "forward"}


def told(error, path):
    """In the module's process: `TYPE|LINES|MESSAGE`."""
    kind = next(k.__name__ for k in type(error).__mro__ if k.__name__ in TYPES or k is object)
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.lineno for f in frames if f.filename == path and f.lineno]
    message = str(error)
    if isinstance(error, SyntaxError) and error.filename == path:
        lines.append(error.lineno or 0)
        message = error.msg
    if isinstance(error, KeyError) and error.args:
        message = str(error.args[0])
    return f"{kind}|{','.join(map(str, lines[-MOST_LINES:]))}|{message}"


def shown(text, path):
    """In the judge: what may be repeated of that, on one line."""
    found = re.fullmatch(r"(\w+)\|((?:\d{1,6},?)*)\|(.*)", text, re.DOTALL)
    if not found:
        return ""
    source = _source(path)
    kind = found[1] if found[1] in TYPES else "an exception"
    said = "" if kind in ("WrongResult", "NotUnderstood") else kind
    said += _at([int(n) for n in found[2].split(",") if n], source)
    message = _known(found[3], source)
    return f"{said}: {message}" if said and message else said or message or kind


def crash(log, path):
    """Of what a process printed before it died: how, by Python's own words, and at which lines."""
    how = re.search(rf"Fatal Python error: ({CRASHES})", log)
    if not how:
        return ""
    files = re.findall(r'File "([^"\n]+)", line (\d{1,6})', log[how.start() :])
    lines = [int(n) for file, n in files if file == str(path)]
    return f"Fatal Python error: {how[1]}{_at(lines[MOST_LINES::-1], _source(path))}"


def _source(path):
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _at(numbers, source):
    """at line 3 (`its text`)"""
    lines = source.splitlines()
    numbers = [n for n in numbers if 0 < n <= len(lines)]
    if not numbers:
        return ""
    line = "".join(c for c in lines[numbers[-1] - 1].strip() if c.isprintable())[:LINE]
    way = f", called at line {', '.join(map(str, numbers[-2::-1]))}" if numbers[1:] else ""
    return f" at line {numbers[-1]} (`{line}`){way}"


def _known(message, source):
    for pattern in _patterns():
        match = pattern.fullmatch(message)
        if match:
            words = set(re.findall(r"[A-Za-z_]\w*", " ".join(match.groups())))
            if words <= _vocabulary() | set(re.findall(r"[A-Za-z_]\w*", source)):
                return message
    return ""
