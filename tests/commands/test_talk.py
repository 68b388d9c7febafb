"""What a person meets in a conversation: its commands, lines typed too early, the story in its order, Markdown."""

from __future__ import annotations

import asyncio
import json
import re
import socket

from commands.conftest import Shell
from commands.test_asked_in_place import terminal
from support.provider_server import calls, chat, standin
from support.provider_streams import chat_events, streams
from support.script_lines import looks, says
from support.terminal import Terminal

PROMPT = "\n> "


def goals(kairos: Shell) -> list[str]:
    return [json.loads(spec)["goal"] for (spec,) in kairos.rows("select spec from run order by n")]


def continues(kairos: Shell) -> list[bool]:
    return [
        found for (found,) in kairos.rows("select json_extract(spec, '$.continues') is not null from run order by n")
    ]


def test_a_command_is_no_message_and_an_unknown_one_is_named(kairos: Shell) -> None:
    with terminal(kairos, "run", "-i", lines=(says("Ok."),)) as person:
        for typed, shown in (
            ("/help", "/budget"),
            ("/modell", "/model?"),
            ("/show", "Nothing was asked"),
            ("One.", "Ok."),
            ("/show", "completed"),
            ("/budget", "rounds"),
            ("/new", "new conversation"),
            ("/etc/hosts has which lines?", "Ok."),
            ("//etc", "Ok."),
        ):
            person.shows(PROMPT)
            person.types(typed)
            person.shows(shown)
        person.shows(PROMPT)
        person.types("/quit")
        assert person.ends() == 0
    assert goals(kairos) == ["One.", "/etc/hosts has which lines?", "/etc"]
    assert continues(kairos) == [False, False, True]


def test_a_change_of_the_tools_counts_from_the_next_message_on(kairos: Shell) -> None:
    with terminal(kairos, "run", "-i", lines=(says("Ok."),)) as person:
        for typed, shown in (("/tools read_file", "tools read_file"), ("One.", "Ok.")):
            person.shows(PROMPT)
            person.types(typed)
            person.shows(shown)
        person.shows(PROMPT)
        person.leaves()
        person.ends()
    ((body,),) = kairos.rows("select body from text, run where hash = json_extract(spec, '$.tools_text')")
    assert "read_file" in body
    assert "list_files" not in body


async def test_another_model_is_asked_from_the_next_message_on(kairos: Shell) -> None:
    async with standin() as provider:
        provider.will(streams(list(chat_events(chat("Ok.")))), streams(list(chat_events(chat("Ok.")))))
        given = {"KAIROS_MODEL": "openai:small", "KAIROS_BASE_URL": provider.openai}
        with Terminal("run", "-i", folder=kairos.folder, environ=kairos.environ(**given)) as person:
            for typed, shown in (("One.", "Ok."), ("/model openai:large", "model openai:large"), ("Two.", "Ok.")):
                await asyncio.to_thread(person.shows, PROMPT)
                person.types(typed)
                await asyncio.to_thread(person.shows, shown)
            await asyncio.to_thread(person.shows, PROMPT)
            person.leaves()
            assert await asyncio.to_thread(person.ends) == 0
    assert [body["model"] for body in provider.bodies] == ["small", "large"]


def test_a_line_that_is_typed_while_a_run_works_waits_for_the_prompt(kairos: Shell) -> None:
    lines = (looks(), {**says("All done."), "delay_s": 1.0})
    with terminal(kairos, "run", "-i", "First.", lines=lines) as person:
        person.shows("list_files")
        person.types_at_once("Second.")
        assert "Second." not in person.shows("All done.")
        assert "Second." not in person.shows(PROMPT)
        person.shows("Second.\n")
        person.shows("All done.")
        person.shows(PROMPT)
        person.leaves()
        assert person.ends() == 0
    assert goals(kairos) == ["First.", "Second."]


async def test_the_calls_of_a_round_are_shown_before_the_next_words_and_a_single_run_speaks_too(kairos: Shell) -> None:
    called = calls(("list_files", {}))
    async with standin() as provider:
        provider.will(
            streams(list(chat_events(chat("I look around.", called, finish="tool_calls")))),
            streams(list(chat_events(chat("There is one file."), 5))),
        )
        given = {"KAIROS_MODEL": "openai:small", "KAIROS_BASE_URL": provider.openai}
        with Terminal("run", "Look.", folder=kairos.folder, environ=kairos.environ(**given)) as person:
            assert await asyncio.to_thread(person.ends) == 0
    at = [person.text.index(part) for part in ("I look around.", "list_files", "There is one file.", "1 tool call")]
    assert at == sorted(at)
    assert person.text.count("There is one file.") == 1
    assert [bool(body["stream"]) for body in provider.bodies] == [True, True]


WRITTEN = "# Found\n\nA **bold** word, <b>tags</b> and &#8238;turned.\n\n> y\n\n- [here](https://a.example/b)\n"


def check_rendered(shown: str, raw: str) -> None:
    assert "**" not in shown
    assert all(part in shown for part in ("A bold word, <b>tags</b> and", "Found", "https://a.example/b"))
    assert "\u258c" not in shown  # as a question of ours begins
    assert "\u202e" not in raw  # which turns the direction of writing


def test_the_markdown_of_an_answer_is_rendered_and_hides_nothing(kairos: Shell) -> None:
    with terminal(kairos, "run", "Look.", lines=(says(WRITTEN),)) as person:
        assert person.ends() == 0
    check_rendered(person.text, person.raw)
    assert kairos("show", "last", "--json").json["summary"].strip() == WRITTEN.strip()


async def test_so_it_is_while_it_is_said(kairos: Shell) -> None:
    async with standin() as provider:
        provider.will(streams(list(chat_events(chat(WRITTEN), 9))))
        given = {"KAIROS_MODEL": "openai:small", "KAIROS_BASE_URL": provider.openai}
        with Terminal("run", "Look.", folder=kairos.folder, environ=kairos.environ(**given)) as person:
            assert await asyncio.to_thread(person.ends) == 0
    check_rendered(on_screen(person.raw), person.raw)


def on_screen(raw: str) -> str:
    """What is left on the screen: lines that the program takes back are gone."""
    lines = [""]
    for part in re.split(r"(\x1b\[[0-9;?]*[A-Za-z])", raw.replace("\r\n", "\n")):
        if up := re.fullmatch(r"\x1b\[([0-9]+)A", part):
            lines = [*lines[: -1 - int(up[1])], ""]
        elif not part.startswith("\x1b["):
            first, *more = part.split("\n")
            lines = [*lines[:-1], lines[-1] + first, *more]
    return "\n".join(lines)


def test_each_attempt_at_a_provider_that_is_away_is_shown_when_it_fails(kairos: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    given = {"KAIROS_MODEL": "openai:small", "KAIROS_BASE_URL": f"http://127.0.0.1:{port}/v1"}
    with Terminal("run", "Look.", folder=kairos.folder, environ=kairos.environ(**given)) as person:
        person.shows("attempt 1 failed")
        person.shows("attempt 2 failed")
        assert kairos.rows("select count(*) from answer") == [(0,)]
        person.interrupts()
        assert person.ends() == 130
