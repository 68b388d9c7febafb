"""What a model's tokens cost, in nano-dollars: at most, for a reservation, and exactly, for a report of tokens.

The table is that of genai-prices, which comes with the package and is read offline; a price in the configuration goes
before it. A model is found in the table by the address of its provider, else by its provider's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import ROUND_CEILING, Decimal
from typing import TYPE_CHECKING, Any

from kairos_mcp.core.limits import Price
from kairos_mcp.core.messages import Usage
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.models.provider_network import is_loopback
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
_TABLE_NAMES = {"openai-chat": "openai", "openai-responses": "openai"}


@dataclass(frozen=True, slots=True)
class Tariff:
    """How a model is priced. `stated_prices`: dollars for a million tokens in and out, from the configuration."""

    model: str
    base_url: str | None = None
    stated_prices: tuple[float, float] | None = None

    @classmethod
    def from_settings(cls, settings: Settings, model: str) -> Tariff:
        """Make the tariff of a model.

        The configured address holds for all models of the configured provider, the stated prices for the configured
        model alone. A model on this machine costs nothing, unless prices are stated for it.
        """
        same_provider = settings.model is not None and model.partition(":")[0] == settings.model.partition(":")[0]
        base_url = settings.base_url if same_provider else None
        stated = (settings.price_input, settings.price_output) if model == settings.model else (None, None)
        match stated:
            case (float() as input_price, float() as output_price):
                return cls(model, base_url, (input_price, output_price))
            case (None, None) if is_loopback(base_url):
                return cls(model, base_url, (0.0, 0.0))
            case _:
                return cls(model, base_url)

    def highest_price(self) -> Price | None:
        """Return what a token costs at most, or None where the price is unknown."""
        if self.stated_prices is not None:
            return Price(*(_round_up_nano(Decimal(str(dollars)) * NANO_PER_MTOK) for dollars in self.stated_prices))
        known = self._find_model(self.model.partition(":")[2])
        if known is None:
            return None
        now = datetime.now(UTC)  # some models are cheaper at night; a run may go on into the day
        prices = [vars(known[1].get_prices(now.replace(hour=hour))) for hour in range(24)]
        read, written = _find_highest(prices, _INPUT_PRICES), _find_highest(prices, _OUTPUT_PRICES)
        if read is None or written is None or any(price.get(name) for price in prices for name in _PER_REQUEST_PRICES):
            return None
        return Price(_round_up_nano(read * NANO_PER_MTOK), _round_up_nano(written * NANO_PER_MTOK))

    def cost(self, usage: Usage, answered_by: str | None, cache_written: int = 0) -> int:
        """Return what these tokens cost, priced as the model that the reply names, if the table has it.

        0 where the price is unknown.
        """
        if self.stated_prices is not None:
            price = self.highest_price()
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
        table_name = None if self.base_url else _TABLE_NAMES.get(provider, provider)
        try:
            return get_snapshot().find_provider_model(model or "", None, table_name, self.base_url)
        except LookupError:
            return None


def _find_highest(prices: Iterable[Mapping[str, Any]], names: tuple[str, ...]) -> Decimal | None:
    """Return the highest price under one of these names, in any tier, or None."""
    found: list[Decimal] = []
    for price in (by_name.get(name) for by_name in prices for name in names):
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
