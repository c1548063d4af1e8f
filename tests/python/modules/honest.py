"""The control: it must pass."""

from attune.examples.module import Model

__all__ = ["Model"]
