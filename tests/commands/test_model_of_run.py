"""`run` and its model: one that is named, one whose key is missing, one that was configured after the first try."""

from __future__ import annotations

import asyncio

import pytest
from commands.conftest import Shell
from commands.test_asked_in_place import rows
from commands.test_short_names import slow
from support.provider_server import standin, talks

ASKS = ("run", "Same words.")


async def test_a_model_that_the_command_names_is_asked_where_none_is_configured(kairos: Shell) -> None:
    async with standin() as provider:
        provider.will(talks("All done."))
        words = (*ASKS, "--model", "openai:small")
        said = await asyncio.to_thread(lambda: kairos(*words, KAIROS_BASE_URL=provider.openai))
        assert (said.code, provider.bodies[0]["model"]) == (0, "small"), said
    assert rows(kairos, "select route from run") == [("provider",)]


@pytest.mark.parametrize(
    ("words", "environ", "named"),
    [
        (("--model", "gpt-5"), {"OPENAI_API_KEY": "sk-none"}, "names no provider"),
        (("--model", "openai:gpt-5"), {"OPENAI_API_KEY": ""}, "OPENAI_API_KEY is not set"),
        slow((), {"KAIROS_MODEL": "anthropic:x", "ANTHROPIC_API_KEY": ""}, "ANTHROPIC_API_KEY is not set"),
        slow(("--json",), {"KAIROS_MODEL": "openai:x", "OPENAI_API_KEY": ""}, "OPENAI_API_KEY is not set"),
    ],
)
def test_what_a_model_lacks_is_said_before_there_is_a_run(
    kairos: Shell, words: tuple[str, ...], environ: dict[str, str], named: str
) -> None:
    said = kairos(*ASKS, *words, **environ)
    assert (said.code, said.out) == (2, "")
    assert named in said.err.splitlines()[0]
    assert not (kairos.state / "kairos.db").exists()
