"""A conversation in the terminal: it goes on through approvals, can be left at any time, and be taken up again."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from commands.conftest import Shell
from commands.test_asked_in_place import QUESTION, script_environ, terminal, verdicts, writes
from commands.test_short_names import script_of, slow
from support.provider_server import calls, chat, standin
from support.provider_streams import chat_events, streams
from support.script_lines import looks, says
from support.terminal import Terminal
from support.waiting import wait_until

from kairos_mcp.cli.follow import ProgressScreen

TALK = ("run", "-i", "--tools", "write_file", "--tools", "list_files")
PROMPT = "\n> "


def continues(kairos: Shell) -> list[str | None]:
    return [found for (found,) in kairos.rows("select json_extract(spec, '$.continues') from run order by n")]


def ids(kairos: Shell) -> list[str]:
    return [run_id for (run_id,) in kairos.rows("select id from run order by n")]


def test_it_goes_on_through_an_approval_and_shows_what_is_said_beside_the_calls(kairos: Shell) -> None:
    lines = ({**looks(), "content": "First I look."}, writes("new.txt", said="Now I write."), says("All done."))
    with terminal(kairos, *TALK, lines=lines) as person:
        person.shows(PROMPT)
        person.types("Do it.")
        person.shows("First I look.")
        person.shows("list_files")
        person.shows("Now I write.")
        person.shows(QUESTION)
        person.types("y")
        person.shows("write_file")
        person.shows("All done.")
        person.shows(PROMPT)
        (kairos.folder / "new.txt").unlink()
        person.types("And again.")
        person.shows(QUESTION)
        person.types("n")
        person.shows("All done.")
        person.shows(PROMPT)
        person.leaves()
        person.shows(f" --continue {ids(kairos)[-1]}")
        assert person.ends() == 0
    assert [verdict for verdict, *_ in verdicts(kairos)] == ["approve", "deny"]
    assert continues(kairos) == [None, ids(kairos)[0]]


def test_what_was_said_once_is_printed_once(kairos: Shell) -> None:
    lines = ({**looks(), "content": "First I look."}, {**says("All done."), "delay_s": 1.2})
    with terminal(kairos, *TALK, "Do it.", lines=lines) as person:
        person.shows("All done.")
        person.shows(PROMPT)
        person.leaves()
        person.ends()
        assert person.text.count("First I look.") == 1
        assert person.text.count("✓ round 1  list_files") == 1
        assert person.text.count("All done.") == 1


@pytest.mark.parametrize("named", [False, slow(True)])
def test_it_is_taken_up_again(kairos: Shell, named: bool) -> None:
    script_environ(kairos, says("Ok."))
    kairos("run", "-i", "First.", **script_of(kairos))
    kairos("run", "-i", "Another.", **script_of(kairos))
    first, newest = ids(kairos)
    more = [first] if named else []
    kairos("run", "-i", "--continue", *more, typed="Second.\nThird.\n", **script_of(kairos))
    assert continues(kairos) == [None, None, first if named else newest, ids(kairos)[2]]
    messages = kairos("show", "last", "--view", "messages", "--json").out
    assert ("First." if named else "Another.") in messages


def test_a_conversation_of_another_folder_goes_on_there_with_its_tools(kairos: Shell) -> None:
    script_environ(kairos, says("Ok."))
    kairos(*TALK, "First.", **script_of(kairos))
    (first,) = ids(kairos)
    other = kairos.home / "other"
    other.mkdir()
    assert kairos("run", "-i", "--continue", cwd=other, **script_of(kairos)).code == 2
    script_environ(kairos, writes("new.txt"), says("Ok."))
    kairos("run", "-i", "--continue", first, "Write.", cwd=other, **script_of(kairos))
    assert continues(kairos) == [None, first]
    assert kairos.rows("select distinct workspace from run") == [(str(kairos.folder),)]
    assert kairos.rows("select tool from approval") == [("write_file",)]


def test_left_at_a_question_it_is_taken_up_at_that_question(kairos: Shell) -> None:
    with terminal(kairos, *TALK, "Do it.", lines=(writes("new.txt"), says("All done."))) as person:
        person.shows(QUESTION)
        person.leaves()
        person.shows(" --continue ")
        assert person.ends() == 3
    with terminal(kairos, "run", "-i", "--continue") as person:
        person.shows(QUESTION)
        person.types("l")  # and left once more
        assert person.ends() == 3
        assert PROMPT not in person.text
    with terminal(kairos, "run", "-i", "--continue") as person:
        person.shows(QUESTION)
        person.types("y")
        person.shows("All done.")
        person.shows(PROMPT)
        assert (kairos.folder / "new.txt").exists()
        (kairos.folder / "new.txt").unlink()
        person.types("More.")
        person.shows(QUESTION)
        person.interrupts()
        assert person.ends() == 3
    assert not (kairos.folder / "new.txt").exists()
    assert continues(kairos) == [None, ids(kairos)[0]]


def test_ctrl_c_keeps_the_run_that_moves_and_it_goes_on_later(kairos: Shell) -> None:
    lines = (looks(), {**says("All done."), "delay_s": 30})
    with terminal(kairos, *TALK, "Do it.", lines=lines) as person:
        person.shows("list_files")
        wait_until(lambda: kairos.rows("select 1 from step where path = 'round-2'"))
        person.interrupts()
        person.shows(" --continue ")
        assert person.ends() == 130
    assert kairos.rows("select outcome, paused from run") == [(None, None)]
    assert kairos.rows("select count(*) from inbox") == [(0,)]
    run_id = ids(kairos)[0]
    assert kairos("cancel", run_id).code == 0


def test_a_killed_conversation_is_taken_up_where_it_was(kairos: Shell) -> None:
    with terminal(kairos, *TALK, "Do it.", lines=(looks(), {**says("All done."), "delay_s": 1.0})) as person:
        person.shows("list_files")
        wait_until(lambda: kairos.rows("select 1 from step where path = 'round-2'"))
        person.kills()
    with terminal(kairos, "run", "-i", "--continue") as person:
        person.shows("All done.")
        person.shows(PROMPT)
        person.leaves()
        assert person.ends() == 0
    assert kairos.rows("select count(*), count(outcome) from run") == [(1, 1)]
    assert [path for (path,) in kairos.rows("select path from step order by id")] == [
        *("round-1", "round-1/call-1", "round-2"),
    ]


def test_a_line_that_is_refused_does_not_end_it(kairos: Shell) -> None:
    script_environ(kairos, says("Ok."))
    kairos("run", "First.", "--key", "k", **script_of(kairos))
    with terminal(kairos, "run", "-i", "--key", "k") as person:
        person.shows(PROMPT)
        person.types("Another goal under that key.")
        person.shows("error: ")
        person.shows(PROMPT)
        person.leaves()
        assert person.ends() == 0
    assert len(ids(kairos)) == 1


def test_there_has_to_be_something_to_continue(kairos: Shell) -> None:
    assert kairos("run", "--continue").code == 2
    assert kairos("run", "-i", "--continue").code == 2
    assert kairos("run", "--from", "round-1", "Look.").code == 2
    assert not kairos.state.exists()


def cuts(kairos: Shell) -> list[str | None]:
    return [found for (found,) in kairos.rows("select json_extract(spec, '$.from_round') from run order by n")]


def test_a_single_run_goes_on_from_another_or_from_one_of_its_rounds(kairos: Shell) -> None:
    script_environ(kairos, looks(), says("First answer."))
    kairos("run", "First.", **script_of(kairos))
    (first,) = ids(kairos)
    script_environ(kairos, says("Second answer."))
    assert kairos("run", "--continue", first, "Second.", **script_of(kairos)).code == 0
    assert kairos("run", "--continue", first, "--from", "round-2", "Third.", **script_of(kairos)).code == 0
    assert (continues(kairos), cuts(kairos)) == ([None, first, first], [None, None, "round-2"])
    messages = json.loads(kairos("show", "last", "--view", "messages", "--json").out)["items"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool", "user", "assistant"]
    assert "First answer." not in json.dumps(messages)
    assert kairos("run", "--continue", first, "--from", "round-2", **script_of(kairos)).code == 0
    messages = json.loads(kairos("show", "last", "--view", "messages", "--json").out)["items"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool", "assistant"]
    refused = kairos("run", "--continue", first, "--from", "round-9", "Fourth.", **script_of(kairos))
    assert (refused.code, "round-1 to round-2" in refused.err) == (2, True)
    assert kairos("run", "--continue", first).code == 2
    assert len(ids(kairos)) == 4


def test_a_conversation_goes_on_from_a_round_and_leaves_the_run_of_it_as_it_is(kairos: Shell) -> None:
    with terminal(kairos, *TALK, "Do it.", lines=(looks(), writes("new.txt"), says("All done."))) as person:
        person.shows(QUESTION)
        person.leaves()
        assert person.ends() == 3
    (first,) = ids(kairos)
    more = ("run", "-i", "--continue", first, "--from", "round-2")
    with terminal(kairos, *more, lines=(says("Otherwise."),)) as person:
        person.shows(f"from round-2 of run {first}")
        person.shows(PROMPT)
        person.types("Do it otherwise.")
        person.shows("Otherwise.")
        person.shows(PROMPT)
        person.types("And on.")
        person.shows("Otherwise.")
        person.shows(PROMPT)
        person.leaves()
        assert person.ends() == 0
    second = ids(kairos)[1]
    assert (continues(kairos), cuts(kairos)) == ([None, first, second], [None, "round-2", None])
    assert kairos.rows("select verdict from approval") == [(None,)]


@pytest.mark.parametrize("words", [["run", "Look."], ["run", "-i"], slow(["run", "-i", "Look."])])
def test_without_a_model_that_is_said_at_once_and_how_to_give_one(kairos: Shell, words: list[str]) -> None:
    said = kairos(*words)
    first = said.err.splitlines()[0]
    assert re.search(r"No model is configured.*KAIROS_MODEL=.*OPENAI_API_KEY.*kairos\.toml", first)
    if "-i" in words:
        assert (said.code, kairos.state.exists()) == (2, False)
    else:  # whoever typed it may answer in its place
        assert (said.code, " answer " in said.out) == (3, True)


@pytest.mark.parametrize("words", [["--route", "caller"], slow(["--json"])])
def test_it_is_not_said_to_who_asked_for_that_or_reads_json(kairos: Shell, words: list[str]) -> None:
    said = kairos("run", "Look.", *words)
    assert (said.code, "No model" in said.err) == (3, False)


def test_each_line_of_a_pipe_is_a_run(kairos: Shell) -> None:
    script_environ(kairos, says("Ok."))
    said = kairos("run", "-i", typed="One.\n\n Two. \nThree.", **script_of(kairos))
    assert said.code == 0
    goals = [json.loads(spec)["goal"] for (spec,) in kairos.rows("select spec from run order by n")]
    assert goals == ["One.", "Two.", "Three."]
    assert said.out.count("Ok.") == 3


async def test_a_providers_words_are_shown_as_they_come_and_no_secret_among_them(kairos: Shell) -> None:
    key = "sk-Zq7plum9xTangerine44"
    gate = asyncio.Event()
    events = list(chat_events(chat(f"First words, then {key} and the end."), 5))
    called = calls(("list_files", {}))
    async with standin() as provider:
        provider.will(
            streams(list(chat_events(chat("I look around.", called, finish="tool_calls")))),
            streams(events, gate=gate, until=5),
        )
        given = {"KAIROS_MODEL": "openai:small", "KAIROS_BASE_URL": provider.openai, "OPENAI_API_KEY": key}
        with Terminal("run", "-i", folder=kairos.folder, environ=kairos.environ(**given)) as person:
            await asyncio.to_thread(person.shows, PROMPT)
            person.types("Tell me.")
            await asyncio.to_thread(person.shows, "First words")
            assert kairos.rows("select count(*) from answer") == [(2,)]  # the round is not over
            gate.set()
            await asyncio.to_thread(person.shows, "then [secret] and the end.")
            await asyncio.to_thread(person.shows, PROMPT)
            person.leaves()
            assert await asyncio.to_thread(person.ends) == 0
            assert key not in person.raw
            assert person.text.count("First words") == 1
            assert person.text.count("I look around.") == 1
    assert [bool(body["stream"]) for body in provider.bodies] == [True, True]


def test_what_was_done_is_not_printed_into_what_is_being_said(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressScreen(quiet=False) as screen:
        screen.speak("First words, ", ends=False)
        screen.print_above("+ list_files")
        assert capsys.readouterr() == ("\nFirst words, ", "")
        screen.speak("then the end.", ends=True)
        assert capsys.readouterr() == ("then the end.\n", "+ list_files\n")
        screen.speak("Left in the mid", ends=False)
        screen.print_above("+ read_file")
    assert capsys.readouterr().err == "+ read_file\n"


async def test_words_that_broke_off_are_followed_by_the_whole_answer(kairos: Shell) -> None:
    events = list(chat_events(chat("First words, then the end."), 5))
    async with standin() as provider:
        provider.will(streams(events[:3]), streams(events))
        given = {"KAIROS_MODEL": "openai:small", "KAIROS_BASE_URL": provider.openai}
        with Terminal("run", "-i", "Tell me.", folder=kairos.folder, environ=kairos.environ(**given)) as person:
            await asyncio.to_thread(person.shows, "The reply broke off; asking again:")
            await asyncio.to_thread(person.shows, "First words, then the end.")
            await asyncio.to_thread(person.shows, PROMPT)
            person.leaves()
            assert await asyncio.to_thread(person.ends) == 0
            assert person.text.count("then the end.") == 1
    assert kairos.rows("select count(*) from attempt") == [(1,)]


def test_it_goes_on_with_its_agent_and_what_tools_that_was_left_unless_another_is_asked_for(kairos: Shell) -> None:
    script_environ(kairos, says("Done."))
    kairos("run", "-i", "First.", "--agent", "file_manager", "--tools", "read_file", **script_of(kairos))
    kairos("run", "-i", "--continue", "last", "Second.", **script_of(kairos))
    kairos("run", "-i", "--continue", "last", "Third.", "--agent", "search_specialist", **script_of(kairos))
    offered = "(select body from text where hash = json_extract(spec, '$.tools_text'))"
    found = kairos.rows(f"select json_extract(spec, '$.agent'), {offered} from run order by n")
    own = {"request_more_rounds"}  # of any agent's loop
    tools = [(agent, {tool["name"] for tool in json.loads(body)} - own) for agent, body in found]
    assert tools[:2] == [("file_manager", {"read_file"})] * 2
    assert tools[2][0] == "search_specialist"
    assert {"search_files", "list_files"} <= tools[2][1]
