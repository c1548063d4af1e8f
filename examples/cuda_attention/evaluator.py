"""Attune's judge as an evaluator: combined_score is the share of the measured peak, 0 to 1."""

from attune.openevolve import evaluate  # noqa: F401
