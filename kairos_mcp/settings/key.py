"""How a setting is declared: a field of `Settings`, with a `Key` that says the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Key(NamedTuple):
    """How a setting is written in the settings file or in its variable, and what else is known of it by its name."""

    about: str
    """What stands above it in the file that `init` writes, and in docs/settings.md."""
    example: Any = None
    """A value for both, if there is none by default."""
    bounds: Mapping[str, Any] = MappingProxyType({})
    """Bounds of the value, or of each item of a list: arguments of pydantic's `Field`."""
    check: str = ""
    """A further check, one of `CHECKS` in `schema.py`: of the value, or of each item of a list."""
    form: str = ""
    """What an error says that it has to be, in place of the regular expression among the bounds."""
    in_variable: bool = True
    """False for tables and lists, which no variable can hold; but lists of folders are written as PATH is."""
    compared: bool = True
    """False if no step of a run depends on it, so that servers which differ in it can go on with each other's runs."""


def key(
    default: T,
    about: str,
    *,
    example: Any = None,
    check: str = "",
    form: str = "",
    in_variable: bool = True,
    compared: bool = True,
    **bounds: Any,
) -> T:
    """Declare a setting: a field of `Settings` with this default and a `Key`.

    The key is metadata of the field and not in its annotation: no start has to resolve the types of all fields.
    """
    record = Key(about, example, MappingProxyType(bounds), check, form, in_variable, compared)
    made: T = field(default=default, metadata={"key": record})
    return made
