"""Settings as frozen dataclasses, from plain values of their types. Unknown keys raise an error.

The string under a field is its help text, returned by `describe`."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import math
import types
import typing
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeVar

from regard.errors import SettingError, suggest

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


def describe(cls: type[Any]) -> dict[str, str]:
    """Help text of each field, from the string under the field or from `cls.help_texts`."""
    found: dict[str, str] = dict(getattr(cls, "help_texts", {}))
    for parent in reversed(cls.__mro__):
        if dataclasses.is_dataclass(parent):
            found.update(_field_docs(parent))
    return {item.name: found[item.name] for item in dataclasses.fields(cls) if item.name in found}


@functools.cache
def _field_docs(kind: type[Any]) -> dict[str, str]:
    tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(kind)))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    docs = {}
    for field, text in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            if isinstance(text.value, ast.Constant) and isinstance(text.value.value, str):
                docs[field.target.id] = " ".join(text.value.value.split())
    return docs


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


def _type_error(name: str, value: Any, hint: Any) -> SettingError:
    kind = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}.get(hint, str(hint))
    return SettingError(f"Setting '{name}' must be {kind}, got '{value}'.")
