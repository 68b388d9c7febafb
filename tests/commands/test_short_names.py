"""A run is named by its id, a unique beginning of one, or `last`; such a decision binds to what was shown."""

from __future__ import annotations

import json
from typing import Any

import pytest
from commands.conftest import Shell
from commands.test_asked_in_place import CHANGE, script_environ, terminal, verdicts, writes
from support.script_lines import says


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


def asking(kairos: Shell, *lines: dict[str, Any]) -> tuple[str, str, str]:
    """A run that waits for an approval: its id, the key, the digest."""
    environ = script_environ(kairos, *(lines or (writes("new.txt"), says("All done."))))
    said = kairos(*CHANGE, "--json", KAIROS_SCRIPT=environ["KAIROS_SCRIPT"])
    (item,) = said.json["waiting"]
    return said.json["run_id"], item["key"], item["digest"]


def script_of(kairos: Shell) -> dict[str, str]:
    return {"KAIROS_SCRIPT": str(kairos.home / "script.jsonl")}


def run_to_its_end(kairos: Shell, goal: str = "Look.") -> str:
    return str(
        kairos("run", goal, "--json", KAIROS_SCRIPT=script_environ(kairos, says("Ok."))["KAIROS_SCRIPT"]).json["run_id"]
    )


@pytest.mark.parametrize("command", ["show", *(slow(name) for name in ("replay", "export", "budget"))])
def test_a_run_is_found_by_a_beginning_and_by_last(kairos: Shell, command: str) -> None:
    first, newest = run_to_its_end(kairos), run_to_its_end(kairos, "Look again.")
    for name, found in ((first[:9], first), (first.removeprefix("run-")[:6], first), ("last", newest)):
        said = kairos(command, name)
        assert said.code == 0, said.err
        assert found in said.out, name


def test_last_is_of_this_workspace_and_a_beginning_of_any(kairos: Shell) -> None:
    here = run_to_its_end(kairos)
    other = kairos.home / "other"
    other.mkdir()
    there = kairos("run", "Look.", "--json", cwd=other, **script_of(kairos)).json["run_id"]
    assert here in kairos("show", "last").out
    assert there in kairos("show", "last", cwd=other).out
    assert there in kairos("show", there[:8]).out
    third = kairos.home / "third"
    third.mkdir()
    assert kairos("show", "last", cwd=third).code == 2


def test_a_beginning_of_several_runs_is_refused_with_their_ids(kairos: Shell) -> None:
    first, second = run_to_its_end(kairos), run_to_its_end(kairos, "Look again.")
    said = kairos("show", "run-")
    assert (said.code, said.out) == (2, "")
    assert first in said.err
    assert second in said.err
    for name in ("run-zz", "x" * 50, "RUN-", "%", "", "Last"):
        assert kairos("show", name).code == 2, name


def test_nothing_is_made_where_no_run_ever_was(kairos: Shell) -> None:
    assert kairos("show", "last").code == 2
    assert not kairos.state.exists()


@pytest.mark.parametrize("words", [["last"], slow(["{run}"]), slow(["{beginning}", "{key}"])])
def test_without_a_terminal_a_short_name_decides_only_with_the_digest(kairos: Shell, words: list[str]) -> None:
    run_id, key, digest = asking(kairos)
    named = [word.format(run=run_id, beginning=run_id[:12], key=key) for word in words]
    refused = kairos("approve", *named, **script_of(kairos))
    assert (refused.code, verdicts(kairos)) == (2, [(None, None, None, None)])
    other = kairos("approve", *named, "--digest", "0" * 16, **script_of(kairos))
    assert (other.code, verdicts(kairos)) == (1, [(None, None, None, None)])
    short = kairos("approve", *named, "--digest", digest[:15], **script_of(kairos))
    assert (short.code, verdicts(kairos)) == (1, [(None, None, None, None)])
    assert kairos("approve", *named, "--digest", digest[:16], **script_of(kairos)).code == 0
    assert (kairos.folder / "new.txt").exists()


def test_the_last_run_to_decide_about_is_the_newest_that_waits_for_it(kairos: Shell) -> None:
    run_id, _, digest = asking(kairos)
    run_to_its_end(kairos)
    assert kairos("approve", "last", "--digest", digest, **script_of(kairos)).code == 0
    assert [verdict for verdict, *_ in verdicts(kairos)] == ["approve"]
    assert kairos.rows("select count(*) from run where id = ? and outcome is not null", run_id) == [(1,)]
    for words in (["approve", "last"], ["settle", "last", "already_done"]):
        said = kairos(*words, **script_of(kairos))
        assert (said.code, said.err.startswith("error: No run here waits for a")) == (1, True), said.err


def test_the_digest_that_suffices_is_shown(kairos: Shell) -> None:
    run_id, _, digest = asking(kairos)
    assert f"digest {digest[:16]}\n" in kairos("show", run_id).out


@pytest.mark.parametrize(("typed", "verdict"), [("y", "approve"), ("n", None), slow("", None)])
def test_on_a_terminal_a_short_name_shows_the_item_and_asks(kairos: Shell, typed: str, verdict: str | None) -> None:
    asking(kairos)
    with terminal(kairos, "approve", "last") as person:
        shown = person.shows("Approve it? [y/N] ")
        assert "+ hello" in shown
        assert "goal: Change it." in shown
        person.types(typed)
        assert person.ends() == (0 if verdict else 3)
    assert [found for found, *_ in verdicts(kairos)] == [verdict]


def test_a_whole_id_and_the_key_decide_at_once_as_before(kairos: Shell) -> None:
    run_id, key, _ = asking(kairos)
    assert kairos("deny", run_id, key, "--feedback", "no", **script_of(kairos)).code == 0
    assert verdicts(kairos) == [("deny", "local", "command", "no")]


def test_an_answer_needs_no_key_where_one_thing_waits(kairos: Shell) -> None:
    kairos("run", "Think.", "--route", "caller", "--json")
    said = kairos("answer", "last", json.dumps({"content": "Thought.", "finish": "stop"}), "--json")
    assert (said.code, said.json["summary"]) == (0, "Thought.")
    again = kairos("answer", "last", json.dumps({"content": "More."}))
    assert again.code == 1
    assert kairos.rows("select count(*) from answer") == [(1,)]


def test_what_does_not_wait_is_refused_with_what_does(kairos: Shell) -> None:
    run_id, key, _ = asking(kairos)
    said = kairos("answer", "last", "{}")
    assert (said.code, key in said.err) == (1, True)
    said = kairos("settle", run_id, "already_done")
    assert (said.code in (1, 2), verdicts(kairos)) == (True, [(None, None, None, None)])


def test_a_run_is_paused_extended_and_resumed_by_commands_that_say_briefly_what_is(kairos: Shell) -> None:
    run_id = kairos("run", "Think.", "--route", "caller", "--limit", "rounds=2", "--json").json["run_id"]
    extended = kairos("extend", "last", "--limit", "rounds=3")
    assert extended.out == f"run {run_id} is input_required, with 4 rounds left\n"
    assert kairos.rows("select cap_rounds from account join run on run.account = account.id") == [(5,)]
    paused = kairos("pause", "last")
    assert (paused.code, len(paused.out.splitlines())) == (0, 2)
    assert kairos.rows("select paused is not null from run") == [(1,)]
    stored = kairos("extend", "last", "--limit", "rounds=1")
    assert "stored" in stored.out
    assert kairos.rows("select kind from inbox where taken is null") == [("extend",)]
    assert kairos("resume", "last", "--json").json["remaining"]["rounds"] == 5
    assert kairos("cancel", "last").code == 0
    for words in (["pause", "last"], ["extend", "last", "--limit", "rounds=1"], ["extend", "last"]):
        assert kairos(*words).code in (1, 2), words


def test_a_run_is_rerouted_and_goes_on(kairos: Shell) -> None:
    asking(kairos)
    said = kairos("reroute", "last", "caller", "--json", **script_of(kairos))
    assert (said.code, said.json["route"]) == (3, "caller")
    assert kairos("deny", "last", "--digest", said.json["waiting"][0]["digest"], **script_of(kairos)).code == 3
    assert kairos.rows("select path, route from waiting join step on step.id = step, run") == [("round-2", "caller")]


def test_one_call_is_one_call(kairos: Shell) -> None:
    kairos("run", "Think.", "--route", "caller", "--json")
    kairos("answer", "last", json.dumps({"tool_calls": [{"id": "1", "name": "list_files", "arguments": {}}]}))
    assert kairos("cancel", "last").code == 0
    shown = kairos("show", "last").out
    assert "1 tool call ·" in shown
    assert shown.endswith("- list_files: 1 call\n")
    assert kairos("replay", "last").code == 0


def complete(kairos: Shell, *typed: str) -> list[str]:
    """What a shell is told when these words are typed and Tab is pressed."""
    words = " ".join(("kairos-mcp", *typed))
    asked = {"_KAIROS_MCP_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(typed))}
    said = kairos(**asked)
    assert said.err == ""
    return said.out.split()


def test_a_shell_completes_the_ids_of_runs(kairos: Shell) -> None:
    assert complete(kairos, "show", "run-") == []
    script_environ(kairos, says("Ok."))
    kairos("run", "First.", **script_of(kairos))
    kairos("run", "Second.", **script_of(kairos))
    found = [run_id for (run_id,) in kairos.rows("select id from run order by n desc")]
    assert complete(kairos, "show", "run-") == found
    assert complete(kairos, "approve", found[0][:9]) == [run_id for run_id in found if run_id.startswith(found[0][:9])]
    assert "doctor" in complete(kairos, "do")


@pytest.mark.parametrize("typed", ["y", slow("n")])
def test_calls_of_one_turn_are_shown_together_and_decided_by_one_word(kairos: Shell, typed: str) -> None:
    first, second = writes("new.txt"), writes("other.txt")
    lines = ({"tool_calls": [*first["tool_calls"], *second["tool_calls"]]}, says("Both are there."))
    script_environ(kairos, *lines)
    assert kairos("run", "Make both.", "--tools", "write_file", "--json", **script_of(kairos)).code == 3
    with terminal(kairos, "approve", "last") as person:
        shown = person.shows("Approve these 2? [y/N] ")
        assert shown.index("create new.txt") < shown.index("create other.txt")
        person.types(typed)
        assert person.ends() == (0 if typed == "y" else 3)
    assert [(kairos.folder / name).exists() for name in ("new.txt", "other.txt")] == [typed == "y"] * 2
    assert [found for found, *_ in verdicts(kairos)] == ["approve" if typed == "y" else None] * 2
