"""Runs: train, evaluate, demo as plain functions, and the folder that a run leaves behind."""
