"""The package's exceptions, of what a torch op raised."""

import torch

from . import _library


class OutOfMemory(_library.OutOfMemory, torch.OutOfMemoryError):
    """For who expects torch's exception."""


def error_of(error):
    """The package's exception for the library's refusal."""
    known = _library.error_of(error)
    return OutOfMemory(*known.args) if isinstance(known, _library.OutOfMemory) else known
