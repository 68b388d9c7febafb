"""`dataclass` for values of which each round, call or ask makes several: frozen for the type checker alone.

The standard one has a frozen instance set each of its fields through `object.__setattr__`, so that to make it takes ten
times as long.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls: type | None = None, /, *, frozen: bool = False, **options: bool) -> Any:
        """As `dataclasses.dataclass`, with all of its options. What is frozen can be hashed; at run time nothing keeps
        it from being changed."""
        return dataclasses.dataclass(cls, **{"unsafe_hash": frozen and options.get("eq", True), **options})
