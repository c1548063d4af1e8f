"""Stands in for OpenEvolve in the process of an evaluator that imports its EvaluationResult, where
that package is not installed."""
