"""Runs from the command line: the real command, the real store, scripts in place of a model."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.commands import command, printed_words
from support.forked_program import run_program, start
from support.waiting import wait_until

LOOK = {"tool_calls": [{"id": "1", "name": "list_files", "arguments": {}}]}
END = {"content": "All done.", "finish": "stop"}


def script(kairos, *lines: dict[str, Any]) -> str:
    file = kairos.home / "script.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(file)


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def waiting_run(kairos, *more: str) -> dict[str, Any]:
    said = kairos("run", "Think.", "--route", "caller", "--json", *more)
    assert said.code == 3
    report: dict[str, Any] = said.json
    return report


@pytest.mark.parametrize("words", [["run", "Look."], ["run", "-i", "Look."]])
def test_a_run_refuses_the_root_and_the_home_folder_and_makes_nothing(kairos, words: list[str]) -> None:
    for folder in (Path("/"), kairos.home, kairos.home.parent):
        assert kairos(*words, cwd=folder).code == 2
    assert not kairos.state.exists()


def test_a_script_that_ends_completes_the_run(kairos) -> None:
    said = kairos("run", "Look.", "--json", KAIROS_SCRIPT=script(kairos, LOOK, END))
    assert (said.code, said.json["status"], said.json["summary"]) == (0, "completed", "All done.")


def test_a_script_that_ends_too_soon_fails_the_run(kairos) -> None:
    said = kairos("run", "Look.", "--json", KAIROS_SCRIPT=script(kairos, LOOK))
    assert (said.code, said.json["status"], said.json["stop_reason"]) == (1, "failed", "llm_error")


def test_a_run_changes_files_with_tools_that_are_named_and_with_approval(kairos) -> None:
    write = {"tool_calls": [{"id": "1", "name": "write_file", "arguments": {"path": "new.txt", "content": "hello\n"}}]}
    path = script(kairos, write, END)
    assert kairos("run", "Write.", "--json", KAIROS_SCRIPT=path).json["calls"][0]["ok"] is False  # it was not offered
    said = kairos("run", "Write.", "--tools", "write_*", "--json", KAIROS_SCRIPT=path)
    (item,) = said.json["waiting"]
    assert (said.code, item["kind"], (kairos.folder / "new.txt").exists()) == (3, "approval", False)
    done = kairos("approve", said.json["run_id"], item["key"], "--json", KAIROS_SCRIPT=path)
    assert (done.code, done.json["summary"]) == (0, "All done.")
    assert (kairos.folder / "new.txt").read_text() == "hello\n"


def test_a_limit_holds(kairos) -> None:
    path = script(kairos, LOOK, LOOK, LOOK, END)
    said = kairos("run", "Look.", "--json", "--limit", "rounds=2", KAIROS_SCRIPT=path)
    assert (said.code, said.json["stop_reason"], said.json["rounds"]) == (4, "max_rounds", 2)


def test_a_limit_that_is_none_is_a_wrong_use(kairos) -> None:
    for limit in ("rounds", "rounds=", "rounds=many", "rounds=-1", "colour=1", "usd=nan", "=1"):
        assert kairos("run", "Look.", "--limit", limit).code == 2, limit
    assert not kairos.state.exists()


def test_without_anybody_to_think_the_printed_command_goes_on(kairos) -> None:
    said = kairos("run", "Say hello.", "--home", str(kairos.state))
    assert said.code == 3
    line, calls = [line for line in said.out.splitlines() if "kairos_mcp answer " in line]
    assert '"tool_calls"' in calls  # the other form of an answer
    environ = kairos.environ()
    del environ["KAIROS_HOME"]
    assert "<your answer>" in line
    words = printed_words(line.replace("<your answer>", "Hello."))
    assert command(*words, folder=kairos.home, environ=environ).code == 0
    (report,) = kairos("runs", "--json").json["runs"]
    assert (report["status"], report["summary"]) == ("completed", "Hello.")


def test_an_answer_comes_from_the_argument_a_file_or_stdin(kairos, tmp_path: Path) -> None:
    report = waiting_run(kairos)
    file = tmp_path / "answer.json"
    file.write_text(json.dumps(LOOK), encoding="utf-8")
    said = kairos("answer", report["run_id"], report["waiting"][0]["key"], "--file", str(file), "--json")
    assert (said.code, said.json["rounds"], said.json["calls"][0]["ok"]) == (3, 2, True)
    said = kairos("answer", report["run_id"], said.json["waiting"][0]["key"], json.dumps(END), "--json")
    assert (said.code, said.json["status"], said.json["rounds"]) == (0, "completed", 2)


def test_an_answer_that_is_none_is_refused_and_the_run_waits_on(kairos) -> None:
    report = waiting_run(kairos)
    key = report["waiting"][0]["key"]
    for text in ("", "no json", "[]", '"text"', '{"content": 1}', '{"a": 1, "a": 2}', '{"b": NaN}'):
        assert kairos("answer", report["run_id"], key, typed=text).code == 2, text
    assert kairos("answer", report["run_id"], key, "{}", "--file", "main.py").code == 2
    assert kairos("show", report["run_id"], "--json").json["waiting"][0]["key"] == key


def test_an_answer_is_stored_once(kairos) -> None:
    report = waiting_run(kairos)
    key = report["waiting"][0]["key"]
    assert kairos("answer", report["run_id"], key, json.dumps(END)).code == 0
    assert kairos("answer", report["run_id"], key, json.dumps({"content": "Other."})).code == 1
    assert kairos("show", report["run_id"], "--json").json["summary"] == "All done."


def test_commands_that_look_do_not_take_a_run_over(kairos) -> None:
    report = waiting_run(kairos)
    run_id = report["run_id"]
    stored = kairos("answer", run_id, report["waiting"][0]["key"], json.dumps(LOOK), "--no-drive")
    assert stored.code == 0
    before = kairos("show", run_id, "--view", "events", "--json").json
    for words in (["runs"], ["show", run_id], ["replay", run_id], ["status"]):
        assert kairos(*words).code == 0
    kairos("doctor")  # of a database it finds that nobody is there to go on
    assert kairos("show", run_id, "--view", "events", "--json").json == before


def test_a_conversation_goes_on_from_run_to_run(kairos) -> None:
    said = kairos("run", "-i", "First.", typed="\nSecond.\n", KAIROS_SCRIPT=script(kairos, END))
    assert said.code == 0
    second, first = (report["run_id"] for report in kairos("runs", "--json").json["runs"])
    messages = json.dumps(kairos("show", second, "--view", "messages", "--json").json)
    assert messages.index("First.") < messages.index("All done.") < messages.index("Second.")
    assert "Second." not in json.dumps(kairos("show", first, "--view", "messages", "--json").json)


def test_the_same_key_gives_the_same_run(kairos) -> None:
    path = script(kairos, END)
    first, again = (kairos("run", "Once.", "--key", "k", "--json", KAIROS_SCRIPT=path).json for _ in range(2))
    assert first["run_id"] == again["run_id"]
    assert kairos("run", "Another.", "--key", "k", KAIROS_SCRIPT=path).code == 2


def test_a_run_is_cancelled_for_good(kairos) -> None:
    report = waiting_run(kairos)
    assert kairos("cancel", report["run_id"]).code == 0
    assert kairos("show", report["run_id"], "--json").json["status"] == "cancelled"
    assert kairos("answer", report["run_id"], report["waiting"][0]["key"], json.dumps(END)).code == 1
    assert kairos("cancel", report["run_id"]).code == 0


def test_ctrl_c_cancels_the_run_and_exits_with_130(kairos) -> None:
    path = script(kairos, {"delay_s": 50, **END})
    environ = kairos.environ(KAIROS_SCRIPT=path)
    process = start(["run", "Slowly.", "--json"], cwd=kairos.folder, env=environ, stdout=subprocess.PIPE)
    try:
        wait_until(lambda: kairos.rows("select 1 from step"))
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    finally:
        process.kill()
    with process.stdout as out:
        assert json.load(out)["status"] == "cancelled"
    ((run_id,),) = kairos.rows("select id from run")
    assert kairos("show", run_id, "--json").json["status"] == "cancelled"


def test_a_run_is_built_again_from_its_record(kairos) -> None:
    run_id = kairos.look_around()
    said = kairos("replay", run_id, "--json")
    assert (said.code, said.json["identical"], said.json["first_difference"]) == (0, True, None)
    assert said.json["steps"] == 8


def test_a_waiting_run_of_another_version_is_shown_with_the_way_to_go_on(kairos) -> None:
    run = waiting_run(kairos)["run_id"]
    kairos.rows("update run set version = 99")
    shown = kairos("show", run)
    assert shown.code == 0
    assert "waiting: round-1 (completion)" in shown.out
    assert f"run -i --continue {run}` goes on from it" in shown.out
    assert "kairos-mcp answer" not in shown.out  # it would be refused


def test_each_view_of_a_run_can_be_had(kairos) -> None:
    run_id = kairos.look_around()
    for view, count in {"events": 8, "calls": 4, "messages": 10, "usage": 8}.items():
        assert kairos("show", run_id, "--view", view).out
        assert len(kairos("show", run_id, "--view", view, "--json").json["items"]) == count


@pytest.mark.parametrize("words", [["show"], ["cancel"], ["replay"], ["answer", "key", "{}"]])
def test_an_unknown_run_is_a_wrong_use(kairos, words: list[str]) -> None:
    assert kairos(words[0], "nosuchrun", *words[1:]).code == 2


def test_what_a_model_wrote_can_not_steer_the_terminal(kairos) -> None:
    path = script(kairos, {"content": "\x1b[2J\x1b]0;owned\x07 \u202e \x9b1m", "finish": "stop"})
    said = kairos("run", "Say.", KAIROS_SCRIPT=path)
    assert said.code == 0
    assert not set("\x1b\x07\u202e\x9b") & set(said.out + said.err)


def test_a_reader_that_leaves_early_is_no_crash(kairos) -> None:
    kairos.look_around()
    reads, writes = os.pipe()
    os.close(reads)
    process = start(["runs"], cwd=kairos.folder, env=kairos.environ(), stdout=writes, stderr=subprocess.PIPE)
    os.close(writes)
    assert process.wait(60) == 1
    with process.stderr as said:
        assert said.read() == b""


@pytest.mark.parametrize("more", [{}, {"PYTHONUNBUFFERED": "1"}], ids=["at the end", "as it is printed"])
def test_a_disk_that_is_full_is_an_error_of_one_line(kairos, more: dict[str, str]) -> None:
    kairos.look_around()
    with Path("/dev/full").open("wb") as full:
        environ = kairos.environ(**more)
        process = start(["runs"], cwd=kairos.folder, env=environ, stdout=full, stderr=subprocess.PIPE)
    code = process.wait(60)
    with process.stderr as stderr:
        said = stderr.read()
    assert (code, said[:7], said.count(b"\n")) == (1, b"error: ", 1)


def test_a_folder_that_is_gone_is_a_wrong_use(kairos, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    shell = f"cd {gone} && rmdir {gone} && {shlex.join(kairos.words('run', 'Look.'))}"
    done = subprocess.run(["bash", "-c", shell], env=kairos.environ(), capture_output=True, timeout=60, check=False)
    assert (done.returncode, b"Traceback" in done.stderr) == (2, False)
    begins = "import os\nos.rmdir(os.getcwd())\nfrom kairos_mcp.cli.main import main\nmain()"
    for words in ("run Look. --workspace ..", "install cursor --project", "serve --home x"):
        gone.mkdir()
        forked = run_program(words.split(), code=begins, cwd=gone, env=kairos.environ())
        assert (forked.returncode, "Traceback" in forked.stderr) == (2, False), words


@pytest.mark.parametrize("typed", ["KAIROS_MODLE", "Kairos_Model"])
def test_a_mistyped_variable_is_named_at_the_start_with_the_one_that_may_be_meant(kairos, typed: str) -> None:
    said = kairos("run", "Think.", "--route", "caller", "--json", **{typed: "openai:gpt-5"})
    assert said.json["status"] == "input_required"
    (line,) = [line for line in said.err.splitlines() if typed in line]
    assert "KAIROS_MODEL" in line
    assert "gpt-5" not in said.err
    assert "ignored" not in kairos("runs").err
    served = kairos("serve", **{typed: "x"})  # its input has ended
    assert typed in served.err


@pytest.mark.parametrize("locale", [{"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}, {"LC_ALL": "C.UTF-8"}])
def test_a_file_whose_name_is_not_ascii_is_listed_and_read_in_every_locale(kairos, locale: dict[str, str]) -> None:
    (kairos.folder / "über.txt").write_text("old words", encoding="utf-8")
    wanted = [
        {"id": "1", "name": "list_files", "arguments": {}},
        {"id": "2", "name": "read_file", "arguments": {"path": "über.txt"}},
    ]
    lines = script(kairos, {"tool_calls": wanted}, END)
    said = kairos("run", "Look.", "--json", KAIROS_SCRIPT=lines, **locale)
    assert said.code == 0
    assert [(call["name"], call["ok"]) for call in said.json["calls"]] == [("list_files", True), ("read_file", True)]
    assert "über.txt" in said.json["calls"][0]["preview"]


@pytest.mark.parametrize("words", [("show", "last", "--view", "event"), ("run", "Look.", "--route", "provder")])
def test_a_wrong_choice_is_refused_with_the_nearest_one_like_any_wrong_use(kairos, words: tuple[str, ...]) -> None:
    said = kairos(*words)
    near = {"event": "events", "provder": "provider"}[words[-1]]
    assert (said.code, said.err.startswith(f"error: {words[-2]} can't be"), f"Did you mean {near}?" in said.err) == (
        2,
        True,
        True,
    )
