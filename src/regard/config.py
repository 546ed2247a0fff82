"""Settings as frozen dataclasses, from plain values of their types. Unknown keys raise an error."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import numbers
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from regard.errors import InputTypeError, SettingError, suggest

P = ParamSpec("P")
T = TypeVar("T")

as_dict = dataclasses.asdict  # Settings as plain values for JSON.

BOOLS = {**dict.fromkeys(("true", "yes", "on", "1"), True), **dict.fromkeys(("false", "no", "off", "0"), False)}


def check_settings(*rules: tuple[bool, str, str, object]) -> None:
    """Raise `SettingError` for the first rule (valid, name, expected, value) that is not valid."""
    for valid, name, expected, value in rules:
        if not valid:
            raise SettingError(f"{name} must be {expected}, got {value}.")


def check_values(cls: type[Any], values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values converted to the field types of `cls`; an unknown key raises an error with the nearest name."""
    types_by_name = typing.get_type_hints(cls)
    hints = {field.name: types_by_name[field.name] for field in dataclasses.fields(cls)}
    for key in values:
        if key not in hints:
            raise SettingError(f"Unknown setting '{prefix}{key}'. {suggest(str(key), hints, prefix)}")
    return {key: coerce(value, hints[key], prefix + key) for key, value in values.items()}


def from_dict(cls: type[T], values: Mapping[str, Any], prefix: str = "") -> T:
    """Settings from plain values; an unknown key raises an error with the nearest name."""
    return cls(**check_values(cls, values, prefix))


def override(settings: T, values: Mapping[str, Any], prefix: str = "") -> T:
    """Copy of the settings with changed fields; names and types are checked as in `from_dict`."""
    return dataclasses.replace(settings, **check_values(type(settings), values, prefix))  # type: ignore[type-var]


def coerce(value: Any, hint: Any, name: str) -> Any:
    """The value converted to the declared type of a field; strings from the command line are parsed."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:  # the caller interprets the value
        return value
    if origin in (typing.Union, types.UnionType):
        if type(None) in arguments and str(value).lower() in ("none", "null"):
            return None
        for option in arguments:
            with suppress(SettingError):
                return coerce(value, option, name)
        raise _type_error(name, value, hint)
    if origin is typing.Literal:
        if value in arguments:
            return value
        raise SettingError(f"Setting '{name}' cannot be '{value}'. {suggest(str(value), map(str, arguments))}")
    if origin is tuple:
        if not isinstance(value, str | list | tuple):
            raise _type_error(name, value, hint)
        # strings are split at commas, lists are not split
        parts = [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
        return tuple(coerce(part, arguments[0], name) for part in parts)
    if origin is dict:
        if isinstance(value, Mapping):
            pairs = list(value.items())
        else:
            entries = [part.rpartition("=") for part in str(value).split(",") if part.strip()]
            if not isinstance(value, str) or any(not (sign and key.strip()) for key, sign, _ in entries):
                raise SettingError(f"Setting '{name}': expected pattern=value,pattern=value, got '{value}'.")
            pairs = [(key.strip(), text.strip()) for key, _, text in entries]
        return {str(key): coerce(part, arguments[1], f"{name}.{key}") for key, part in pairs}
    if hint is bool and str(value).lower() in BOOLS:
        return BOOLS[str(value).lower()]
    if isinstance(value, numbers.Real) and not isinstance(value, int | float):  # of NumPy
        value = int(value) if isinstance(value, numbers.Integral) else float(value)
    if hint is bool or isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _type_error(name, value, hint)
    try:
        if hint is int and not str(value).strip().lstrip("+-").isdecimal():  # "3e5" is accepted, 2.5 is refused
            value = float(value)
            if value != int(value):
                raise ValueError(value)
        read = hint(value)
        if isinstance(read, float) and not math.isfinite(read):
            raise ValueError(value)
        return read
    except (TypeError, ValueError, OverflowError) as error:
        raise _type_error(name, value, hint) from error


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator of public functions: an argument that does not match its annotation is an `InputTypeError`."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        hints = typing.get_type_hints(function)
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            if name in hints and not _matches(value, hints[name]):
                expected = re.sub(r"\b[a-z_]+\.", "", inspect.formatannotation(hints[name]))
                found = f"{type(value).__name__} {' '.join(repr(value).split()):.60}"
                raise InputTypeError(f"Argument '{name}' must be {expected}, got {found}.")
        return function(*args, **kwargs)

    return call


def _matches(value: Any, hint: Any) -> bool:
    """Whether a value has an annotated type, including the items of sequences and the keys of mappings."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_matches(value, option) for option in arguments)
    if isinstance(origin, type) and issubclass(origin, Sequence | Mapping):
        is_text = isinstance(value, str | bytes)  # also a sequence of texts, by accident
        return isinstance(value, origin) and not is_text and all(_matches(item, arguments[0]) for item in value)
    kind = origin or hint
    return hint is Any or (isinstance(value, kind) if isinstance(kind, type) else True)


def _type_error(name: str, value: Any, hint: Any) -> SettingError:
    nouns = {int: "an integer", float: "a number", bool: "true or false", str: "a string", types.NoneType: "none"}
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    expected = " or ".join(nouns.get(option, str(option)) for option in options)
    return SettingError(f"Setting '{name}' must be {expected}, got '{value}'.")
