"""The quick dataclass takes what its type says: every option of the standard one, and none at all."""

from __future__ import annotations

import pytest

from kairos_mcp.core.quick_dataclass import dataclass


@dataclass
class Bare:
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyword:
    number: int = 1


@dataclass(order=True, repr=False)
class Ordered:
    number: int


@dataclass(frozen=True, eq=False)
class Same:
    number: int


def test_it_is_used_with_every_option_and_with_none() -> None:
    assert Bare(1) == Bare(1)
    assert Ordered(1) < Ordered(2)
    assert "number" not in repr(Ordered(1))
    assert Keyword(number=2).number == 2
    with pytest.raises(TypeError):
        Keyword(2)  # type: ignore[misc]


def test_a_frozen_one_can_be_hashed_by_its_values_or_as_itself() -> None:
    assert hash(Keyword(number=2)) == hash(Keyword(number=2))
    one, other = Same(1), Same(1)
    assert hash(one) != hash(other)
    assert one != other
