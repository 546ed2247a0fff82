"""Start coverage in every process of a recorded run: pytest, the workers of pytest-xdist, and processes started by tests."""

import coverage

coverage.process_startup()
