"""Runs: `train`, `evaluate` and other commands as functions, and the run folder."""
