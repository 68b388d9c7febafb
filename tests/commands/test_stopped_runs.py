"""A run that a guard ends: its status and exit code, the cause on stderr, and the command that goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.commands import printed_words

LOOK = {"tool_calls": [{"id": "1", "name": "list_files", "arguments": {}}]}
SUMMARY = {"content": "One file so far.", "finish": "stop"}
END = {"content": "All done.", "finish": "stop"}


def script(kairos, *lines: dict[str, Any]) -> str:
    file = kairos.home / "script.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(file)


def test_stdout_has_the_summary_and_stderr_the_cause_and_a_command_that_goes_on(kairos) -> None:
    path = script(kairos, LOOK, SUMMARY)
    said = kairos("run", "Look.", "--limit", "rounds=1", "--home", str(kairos.state), KAIROS_SCRIPT=path)
    assert said.code == 4
    assert "One file so far." in said.out
    assert "One file so far." not in said.err
    cause, commands = said.err.partition("stopped: out of rounds")[1:]
    assert cause
    (line,) = [line for line in commands.splitlines() if " --continue " in line]
    done = kairos(*printed_words(line), KAIROS_SCRIPT=script(kairos, END))
    assert (done.code, "All done." in done.out) == (0, True), done.err


def test_where_no_model_said_a_last_word_the_record_is_on_stderr_after_the_cause(kairos) -> None:
    """The closing call is the third one, and the limit leaves room for two."""
    words = ("run", "Look.", "--limit", "model_calls=2", "--limit", "rounds=9")
    path = script(kairos, LOOK, {"content": "", "finish": "stop"})
    said = kairos(*words, KAIROS_SCRIPT=path)
    assert said.code == 4
    assert said.err.index("stopped: out of budget") < said.err.index("- list_files: 1 call")
    assert "list_files: 1 call" not in said.out
    told = kairos(*words, "--json", KAIROS_SCRIPT=path)
    assert (told.code, told.json["status"], told.json["summary"]) == (4, "stopped", None)
    assert "- list_files: 1 call" in told.json["record"]
    assert len(told.json["record"]) <= 2_000
    shown = kairos("show", told.json["run_id"])
    assert "- list_files: 1 call" in shown.out


@pytest.mark.parametrize(("text", "finish"), [("All done.", "stop"), ("All done.", None)])
def test_a_run_that_came_to_an_end_of_its_own_reads_as_answered(kairos, text: str, finish: str | None) -> None:
    path = script(kairos, {"content": text} | ({} if finish is None else {"finish": finish}))
    said = kairos("run", "Look.", KAIROS_SCRIPT=path)
    assert said.code == 0
    assert "completed (answered)" in said.out
    (report,) = kairos("runs", "--json").json["runs"]
    assert (report["status"], report["stop_reason"] in ("assistant_stop", "no_tool_calls")) == ("completed", True)
