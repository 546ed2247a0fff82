"""Demos of `regard demo`, by name."""

DEMOS = ("translate", "caption", "clouds")
