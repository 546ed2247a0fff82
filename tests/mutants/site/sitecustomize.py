"""Starts coverage in every process of a recorded run: pytest, the workers of pytest-xdist, and whatever tests start."""

import coverage

coverage.process_startup()
