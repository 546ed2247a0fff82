"""Tables of names and module paths, so that a program imports only the entries in use."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")


def resolve(path: str) -> Any:
    """The object at `package.module:name`, after import of the module."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


class LazyTable(MutableMapping[str, T], Generic[T]):
    """Mapping of names to objects, each imported from a path `package.module:name` at its first access.

    Iteration, length and `in` import no module. With `instantiate`, classes are instantiated. Assignment adds or
    replaces an entry by an existing object."""

    def __init__(self, paths: Mapping[str, str], instantiate: bool = False) -> None:
        self.paths = dict(paths)
        self._instantiate = instantiate
        self._loaded: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name not in self._loaded:
            found = resolve(self.paths[name])
            self._loaded[name] = cast(T, found() if self._instantiate else found)
        return self._loaded[name]

    def __setitem__(self, name: str, value: T) -> None:
        self._loaded[name] = value

    def __delitem__(self, name: str) -> None:
        if name not in self:
            raise KeyError(name)
        self._loaded.pop(name, None)
        self.paths.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter({**self.paths, **self._loaded})

    def __len__(self) -> int:
        return len({**self.paths, **self._loaded})

    def __contains__(self, name: object) -> bool:
        return name in self.paths or name in self._loaded
