"""`dataclass` as this package uses it: frozen for the type checker alone, and made in half the time.

The standard one has a frozen instance set each of its fields through `object.__setattr__`, so that to make one takes
five times as long, and it compiles the text of a method for each that it adds to a class. A start makes four hundred
classes.
"""

from __future__ import annotations

import dataclasses
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls: type | None = None, /, *, frozen: bool = False, **options: bool) -> Any:
        """As `dataclasses.dataclass`, with all of its options. What is frozen can be hashed; at run time nothing keeps
        it from being changed."""
        if cls is None:
            return lambda cls: dataclass(cls, frozen=frozen, **options)
        if options.get("repr", True) and "__repr__" not in vars(cls):
            cls.__repr__ = _show
        return dataclasses.dataclass(
            cls, **{"unsafe_hash": frozen and options.get("eq", True), **options, "repr": False}
        )


@recursive_repr()
def _show(value: Any) -> str:
    shown = (f"{field.name}={getattr(value, field.name)!r}" for field in dataclasses.fields(value) if field.repr)
    return f"{type(value).__qualname__}({', '.join(shown)})"
