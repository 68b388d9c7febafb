"""What a person decides by a command is carried out by the server that has the workspace, by that server's settings;
by the command itself only where none lives, and then by the settings file that the server was started with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.app import Place
from support.environment import plain_environ
from support.forked_program import run_program
from support.stdio_server import StdioClient
from support.terminal import Terminal

CALL = {"name": "run_command", "arguments": {"argv": ["sh", "-c", "echo made >> made.txt"]}}
WITHIN_S = 60.0


def kairos(place: Place, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    plain = plain_environ()
    return run_program([*words, "--home", str(place.home)], timeout=WITHIN_S, env={**plain, **environ})


def write_script(place: Place) -> None:
    lines: list[dict[str, Any]] = [{"content": "", "tool_calls": [CALL]}, {"content": "done", "finish": "stop"}]
    place.script.write_text("".join(json.dumps(line) + "\n" for line in lines))


def start_until_asked(client: StdioClient) -> tuple[str, str]:
    run = client.call("planner_run", goal="make", tools=["run_command"], wait_s=20)
    (item,) = run["waiting"]
    assert item["kind"] == "approval", run
    return run["run_id"], item["key"]


def was_made(place: Place) -> bool:
    return (place.workspace / "made.txt").exists()


@pytest.mark.parametrize("commands", ["off", "bare"])
def test_a_living_server_acts_by_its_own_settings(place: Place, monkeypatch: pytest.MonkeyPatch, commands: str) -> None:
    write_script(place)
    monkeypatch.setenv("KAIROS_COMMANDS", "bare")
    with StdioClient.start(place) as server:
        run_id, key = start_until_asked(server)
        done = kairos(
            place, "approve", run_id, key, "--json", KAIROS_COMMANDS=commands, KAIROS_SCRIPT=str(place.script)
        )
        assert done.returncode == 0, done.stderr
        assert (json.loads(done.stdout)["summary"], was_made(place)) == ("done", True)
        ((via,),) = place.rows("select owner.via from owner order by id desc limit 1")
        assert via == "mcp"  # the command never owned a run


def test_a_server_names_what_it_serves_when_it_wakes_and_keeps_no_values(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_script(place)
    monkeypatch.setenv("KAIROS_BASE_URL", "http://secret.example/v1")
    with StdioClient.start(place) as server:
        server.call("planner_run", goal="make", tools=["run_command"], wait_s=20)
        ((pid, text),) = place.rows("select pid, serves from owner")
        serves = json.loads(text)
        assert (pid, serves["workspaces"], serves["routes"]) == (server.pid, [str(place.workspace)], ["scripted"])
        assert {"config", "version", "settings"} & serves.keys() == {"version", "settings"}  # it has no file
        assert "secret" not in text


def test_without_a_living_server_the_command_acts_by_its_settings_file_and_names_what_differs(
    place: Place, tmp_path: Path
) -> None:
    write_script(place)
    elsewhere = tmp_path / "elsewhere.toml"
    elsewhere.write_text('commands = "bare"\n')
    elsewhere.chmod(0o600)
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("KAIROS_CONFIG", str(elsewhere))
        environ.setenv("KAIROS_SHOWN_CHARS", "900")
        with StdioClient.start(place) as server:
            run_id, key = start_until_asked(server)
    done = kairos(place, "approve", run_id, key, "--json", KAIROS_SCRIPT=str(place.script))
    assert (done.returncode, was_made(place)) == (0, True), done.stderr
    assert "shown_chars" in done.stderr
    assert "commands" not in done.stderr


def test_a_server_of_another_folder_is_not_waited_for(place: Place, tmp_path: Path) -> None:
    write_script(place)
    (place.home).mkdir(parents=True)
    (place.home / "kairos.toml").write_text('commands = "bare"\n')
    (place.home / "kairos.toml").chmod(0o600)
    with StdioClient.start(place) as server:
        run_id, key = start_until_asked(server)
    other = tmp_path / "other"
    other.mkdir()
    words = [sys.executable, "-m", "kairos_mcp", "serve", "--home", str(place.home), "--workspace", str(other)]
    with StdioClient(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)) as stranger:
        stranger.ask(
            "initialize",
            {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
        )
        stranger.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        stranger.call("run_status")
        assert kairos(place, "approve", run_id, key, KAIROS_SCRIPT=str(place.script)).returncode == 0
    assert was_made(place)


def test_what_is_decided_in_place_is_carried_out_by_the_living_server(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {"name": "run_command", "arguments": {"argv": ["sh", "-c", "echo made >> made.txt; seq 1 900"]}}
    lines: list[dict[str, Any]] = [{"content": "", "tool_calls": [counts]}, {"content": "done", "finish": "stop"}]
    place.script.write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setenv("KAIROS_COMMANDS", "bare")
    monkeypatch.setenv("KAIROS_SHOWN_CHARS", "900")  # by which its results can be told from the command's
    with StdioClient.start(place) as server:
        server.call("planner_run", goal="first", route="caller", wait_s=0)  # it is awake
        plain = plain_environ()
        environ = {"KAIROS_HOME": str(place.home), "KAIROS_SCRIPT": str(place.script), "KAIROS_COMMANDS": "bare"}
        words = ("run", "make", "--tools", "run_command")
        with Terminal(*words, folder=place.workspace, environ=plain | environ) as person:
            person.shows("later [l]? ")
            assert not was_made(place)
            person.types("y")
            person.shows("done")
            assert person.ends() == 0
    assert (place.workspace / "made.txt").read_text() == "made\n"
    ((size,),) = place.rows(
        "select length(json_extract(body, '$.content')) from answer join step on step.id = step where kind = 'call'"
    )
    assert size < 1_500
