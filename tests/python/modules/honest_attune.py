"""Honest: the same by Attune's kernel."""

from attune.examples.optimised_module import Model

__all__ = ["Model"]
