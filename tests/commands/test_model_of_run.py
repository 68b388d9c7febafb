"""`run` and its model: one that is named, one whose key is missing, one that was configured after the first try."""

from __future__ import annotations

import asyncio
import json
import shlex
import socket

import pytest
from commands.conftest import Shell
from commands.test_asked_in_place import script_environ, writes
from commands.test_short_names import slow
from support.provider_server import standin, talks
from support.script_lines import says

ASKS = ("run", "Same words.")


async def test_a_model_that_the_command_names_is_asked_where_none_is_configured(kairos: Shell) -> None:
    async with standin() as provider:
        provider.will(talks("All done."))
        words = (*ASKS, "--model", "openai:small")
        said = await asyncio.to_thread(lambda: kairos(*words, KAIROS_BASE_URL=provider.openai))
        assert (said.code, provider.bodies[0]["model"]) == (0, "small"), said
    assert kairos.rows("select route from run") == [("provider",)]


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


def states(kairos: Shell) -> list[tuple[str, bool]]:
    """The route of each run, and whether it has ended."""
    return [
        (route, bool(ended)) for route, ended in kairos.rows("select route, outcome is not null from run order by n")
    ]


async def test_the_same_words_go_on_by_a_provider_that_is_configured_after_the_first_try(kairos: Shell) -> None:
    assert kairos(*ASKS).code == 3
    assert states(kairos) == [("caller", False)]
    async with standin() as provider:
        provider.will(talks("All done."))
        given = {"KAIROS_MODEL": "openai:small", "KAIROS_BASE_URL": provider.openai}
        said = await asyncio.to_thread(lambda: kairos(*ASKS, **given))
    assert (said.code, len(provider.heard)) == (0, 1), said
    assert states(kairos) == [("provider", True)]
    assert "now on the route provider" in said.err
    assert "auto chose caller" not in said.out


def test_the_same_words_with_a_script_begin_a_new_run_and_find_that_one_again(kairos: Shell) -> None:
    assert kairos(*ASKS).code == 3
    asking = script_environ(kairos, writes("new.txt"), says("Done."))["KAIROS_SCRIPT"]
    words = (*ASKS, "--tools", "write_file")
    assert kairos(*words).code == 3
    first = kairos(*words, KAIROS_SCRIPT=asking)
    assert (first.code, " cancel run-" in first.err) == (3, True)
    again = kairos(*words, KAIROS_SCRIPT=asking)
    assert (again.code, " reroute run-" in again.err) == (3, True)
    assert states(kairos) == [("caller", False), ("caller", False), ("scripted", False)]


def test_a_route_that_was_asked_for_stays_and_a_run_keeps_the_script_of_its_start(kairos: Shell) -> None:
    run_id = kairos(*ASKS, "--route", "caller", "--json").json["run_id"]
    script = script_environ(kairos, says("Done."))["KAIROS_SCRIPT"]
    said = kairos(*ASKS, "--route", "caller", KAIROS_SCRIPT=script)
    assert (said.code, f"reroute {run_id} provider" in said.err, f"cancel {run_id}" in said.err) == (3, True, True)
    refused = kairos("reroute", run_id, "scripted", KAIROS_SCRIPT=script)
    assert (refused.code, "the script of its start" in refused.err) == (2, True)
    assert states(kairos) == [("caller", False)]


@pytest.mark.slow
def test_a_provider_that_is_out_of_reach_is_named_with_its_address_and_the_cause(kairos: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    given = {"KAIROS_MODEL": "openai:small", "KAIROS_BASE_URL": f"http://me:hidden@127.0.0.1:{port}/v1"}
    said = kairos(*ASKS, **given)
    assert said.code == 3
    ((why,),) = kairos.rows("select paused from run")
    assert f"127.0.0.1:{port}" in why
    assert "(Connection refused)" in why
    assert "KAIROS_BASE_URL" in why
    assert "hidden" not in why + said.out + said.err


def test_both_forms_of_an_answer_are_shown_ready_to_paste(kairos: Shell) -> None:
    said = kairos(*ASKS)
    text, call = (
        shlex.split(line) for line in said.out.splitlines() if line.startswith("  ") and " answer run-" in line
    )
    assert json.loads(text[-1]) == {"content": "<your answer>"}
    assert kairos(*text[text.index("answer") :]).code == 2  # nobody has answered yet
    assert kairos(*call[call.index("answer") :]).code == 3  # the call is made, and the next round waits
    assert kairos.rows("select kind from step order by id") == [("round",), ("call",), ("round",)]
    assert "run_continue" not in said.out
