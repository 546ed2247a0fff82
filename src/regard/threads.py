"""State that several threads change at once: contexts of the whole process, and the evaluation mode of a model."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any


@dataclass
class SharedContext:
    """A context of the whole process, such as warning filters: the first thread enters it, and the last one leaves it.

    Contexts that each thread enters and leaves alone would restore the state of another thread."""

    make: Callable[[], AbstractContextManager[Any]]
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _threads: int = field(default=0, init=False)  # Threads inside the context.
    _stack: ExitStack = field(default_factory=ExitStack, init=False)

    @contextmanager
    def __call__(self, change: Callable[[], object] = lambda: None) -> Iterator[None]:
        """`change` is called inside the context by each thread."""
        with self._lock:
            if not self._threads:
                self._stack.enter_context(self.make())
            self._threads += 1
            change()
        try:
            yield
        finally:
            with self._lock:
                self._threads -= 1
                if not self._threads:
                    self._stack.close()


_warning_filters = SharedContext(warnings.catch_warnings)


def suppress_warnings(**rule: Any) -> AbstractContextManager[None]:
    """Context without the warnings of a rule, with the arguments of `warnings.filterwarnings`. Other threads are affected,
    because filters belong to the process."""
    return _warning_filters(partial(warnings.filterwarnings, "ignore", **rule))


@dataclass
class EvalMode:
    """Context in which all modules of a model are in evaluation mode. The calls of several threads may overlap, and streams
    may be interleaved: the last call restores the modes. Calls do not wait for each other."""

    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _calls: int = field(default=0, init=False)  # Calls in progress.
    _switched: list[Any] = field(default_factory=list, init=False)  # Modules to return to training mode.

    def __reduce__(self) -> tuple[type[EvalMode], tuple[()]]:
        return EvalMode, ()  # a copied or unpickled model has no calls in progress

    @contextmanager
    def __call__(self, model: Any) -> Iterator[None]:
        with self._lock:
            self._calls += 1
            for module in model.modules() if model.training else ():
                if module.training:
                    module.training = False
                    self._switched.append(module)
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1
                while self._switched and not self._calls:
                    self._switched.pop().training = True
