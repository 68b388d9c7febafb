"""`dataclass` for values of which each round, call or ask makes several: frozen for the type checker alone.

The standard one has a frozen instance set each of its fields through `object.__setattr__`, so that to make it takes ten
times as long.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(*, frozen: bool = False, slots: bool = False) -> Callable[[type], type]:
        """As `dataclasses.dataclass`. What is frozen can be hashed; at run time nothing keeps it from being changed."""
        return dataclasses.dataclass(slots=slots, unsafe_hash=frozen)
