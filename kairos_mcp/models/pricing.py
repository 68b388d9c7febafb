"""What a model's tokens cost: at most, for a reservation, and what a report of tokens comes to. Nano-dollars alone.

The table is that of genai-prices, which comes with the package and is read offline; a price that the configuration
states goes before it. A model is priced by the address it is asked at, else by its provider's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import ROUND_CEILING, Decimal
from typing import TYPE_CHECKING, Any

from kairos_mcp.budget.units import Price
from kairos_mcp.core.messages import Usage
from kairos_mcp.settings.settings import Settings

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, Provider

NANO_PER_MTOK = 1_000  # dollars for a million tokens are thousands of nano-dollars for one
_INPUT_PRICES = ("input_mtok", "cache_write_mtok")  # what the prompt may cost; writing it to a cache costs the most
_OUTPUT_PRICES = ("output_mtok", "output_reasoning_mtok")
_PER_REQUEST_PRICES = (
    "requests_kcount",
    "input_mchars",
    "input_text_messages_kcount",
)  # priced otherwise than by tokens
_ONE_PROVIDER = {"openai-chat": "openai", "openai-responses": "openai"}


@dataclass(frozen=True, slots=True)
class Tariff:
    """How a model is priced. `stated`: dollars for a million tokens in and out, from the configuration."""

    model: str
    base_url: str | None = None
    stated: tuple[float, float] | None = None

    @classmethod
    def configured(cls, settings: Settings, model: str) -> Tariff:
        """The address holds for models of the configured provider, the stated price for the configured model."""
        same = settings.model is not None and model.partition(":")[0] == settings.model.partition(":")[0]
        base_url = settings.base_url if same else None
        match settings.price_input, settings.price_output:
            case (float() as read, float() as written) if model == settings.model:
                return cls(model, base_url, (read, written))
            case _:
                return cls(model, base_url)

    def dearest(self) -> Price | None:
        """What a token costs at most; None where nobody knows."""
        if self.stated is not None:
            return Price(*(_round_up_nano(Decimal(str(dollars)) * NANO_PER_MTOK) for dollars in self.stated))
        known = self._find_model(self.model.partition(":")[2])
        if known is None:
            return None
        now = datetime.now(UTC)  # some models are cheaper at night; a run may go on into the day
        prices = [vars(known[1].get_prices(now.replace(hour=hour))) for hour in range(24)]
        read, written = _highest_price(prices, _INPUT_PRICES), _highest_price(prices, _OUTPUT_PRICES)
        if read is None or written is None or any(each.get(name) for each in prices for name in _PER_REQUEST_PRICES):
            return None
        return Price(_round_up_nano(read * NANO_PER_MTOK), _round_up_nano(written * NANO_PER_MTOK))

    def cost(self, usage: Usage, answered_by: str | None, cache_written: int = 0) -> int:
        """What these tokens cost, by the model that the reply names where it is known; 0 where nobody knows."""
        if self.stated is not None:
            price = self.dearest()
            return price.cost(usage.input_tokens, usage.output_tokens) if price is not None else 0
        known = self._find_model(answered_by) or self._find_model(self.model.partition(":")[2])
        if known is None:
            return 0
        from genai_prices import Usage as Tokens

        tokens = Tokens(
            input_tokens=usage.input_tokens,
            cache_read_tokens=usage.cached_tokens,
            cache_write_tokens=cache_written,
            output_tokens=usage.output_tokens,
        )
        provider, model = known
        return _round_up_nano(model.calc_price(tokens, provider).total_price * 10**9)

    def _find_model(self, model: str | None) -> tuple[Provider, ModelInfo] | None:
        from genai_prices.data_snapshot import get_snapshot

        provider = self.model.partition(":")[0]
        named = None if self.base_url else _ONE_PROVIDER.get(provider, provider)
        try:
            return get_snapshot().find_provider_model(model or "", None, named, self.base_url)
        except LookupError:
            return None


def _highest_price(prices: Iterable[Mapping[str, Any]], names: tuple[str, ...]) -> Decimal | None:
    """The highest price under one of these names, in any tier; None where there is none."""
    found: list[Decimal] = []
    for price in (each.get(name) for each in prices for name in names):
        match price:
            case None:
                pass
            case Decimal():
                found.append(price)
            case tiered:
                found += [tiered.base, *(tier.price for tier in tiered.tiers)]
    return max(found, default=None)


def _round_up_nano(amount: Decimal) -> int:
    return int(amount.to_integral_value(ROUND_CEILING))
