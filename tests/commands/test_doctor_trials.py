"""What `doctor` tries: the provider, each approved server, the agents of this folder; and how little it prints."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.downstream import PEER
from support.provider_server import refuses, standin, talks

from kairos_mcp.app.tools import STDERR_CHARS
from kairos_mcp.settings.names import SETTINGS


def findings(said: Any, matter: str) -> list[tuple[str, str]]:
    return [(each["state"], each["text"]) for each in said.json["findings"] if each["matter"] == matter]


async def ask_doctor(kairos: Any, *words: str, **environ: str) -> Any:
    return await asyncio.to_thread(kairos, "doctor", "--json", *words, KAIROS_MODEL="openai:m", **environ)


async def test_a_provider_that_answers_is_asked_once_on_the_day_s_account(kairos) -> None:
    async with standin() as provider:
        provider.will(talks("ok"))
        said = await ask_doctor(kairos, KAIROS_BASE_URL=provider.openai)
        assert [state for state, _ in findings(said, "provider")][-1] == "ok"
        assert len(provider.heard) == 1
        await ask_doctor(kairos, "--offline", KAIROS_BASE_URL=provider.openai)
        assert len(provider.heard) == 1
    ((run_id,),) = kairos.rows("select id from run")
    run = kairos("show", run_id, "--json").json
    assert (run["status"], run["usage"]["model_calls"]) == ("completed", 1)
    assert run_id in findings(said, "provider")[-1][1]


async def test_the_trial_of_a_provider_is_none_of_a_user_s_runs(kairos) -> None:
    async with standin() as provider:
        provider.will(talks("ok"))
        await ask_doctor(kairos, KAIROS_BASE_URL=provider.openai)
    assert kairos.rows("select count(*) from run") == [(1,)]
    assert kairos("runs", "--json", "--all").json["runs"] == []
    assert kairos("run", "--continue", "--json", "Go on.").code == 2  # there is no conversation to go on with


async def test_a_provider_that_refuses_is_bad_with_its_reason(kairos) -> None:
    async with standin() as provider:
        provider.will(refuses(401, "wrong key"))
        said = await ask_doctor(kairos, KAIROS_BASE_URL=provider.openai)
        assert len(provider.heard) == 1
    assert said.code == 1
    found = [(state, "401" in text and "wrong key" in text) for state, text in findings(said, "provider")]
    assert ("bad", True) in found


async def test_a_dead_port_is_bad_and_asked_once(kairos) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    said = await ask_doctor(kairos, KAIROS_BASE_URL=f"http://127.0.0.1:{port}/v1")
    assert said.code == 1
    assert [(s, "refused" in text) for s, text in findings(said, "provider") if s == "bad"] == [("bad", True)]
    assert [attempts for (attempts,) in kairos.rows("select count(*) from attempt")] == [0]


def test_agents_are_judged_by_the_tools_that_this_folder_brings(kairos) -> None:
    folder = kairos.state / "config" / "agents"
    folder.mkdir(parents=True)
    (folder / "reviewer.md").write_text("---\nname: reviewer\ndescription: R.\ntools: [read_file]\n---\nYou review.\n")
    assert not [text for state, text in findings(kairos("doctor", "--json"), "agents") if state != "ok"]


def test_offline_starts_no_program_and_no_server(kairos, tmp_path: Path) -> None:
    started = tmp_path / "started"
    python = kairos.folder / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\necho program >> {started}\n")
    python.chmod(0o755)
    kairos.state.mkdir(parents=True, mode=0o700)
    server = f"echo server >> {started}"
    (kairos.state / "kairos.toml").write_text(
        f'commands = "bare"\n[servers.x]\ncommand = "/bin/sh"\nargs = ["-c", {json.dumps(server)}]\nsandbox = false\n'
    )
    kairos("doctor", "--offline", "--json")
    assert not started.exists()
    kairos("doctor", "--json")
    assert set(started.read_text().split()) == {"program", "server"}


def test_agents_and_skills_of_this_folder_are_looked_at(kairos) -> None:
    for path, text in (
        ("agents/broken.md", "---\nname: broken\n"),
        ("agents/able.md", "---\nname: able\ndescription: A.\ntools: Read\n---\nYou read.\n"),
        ("skills/headless/SKILL.md", "no front matter\n"),
        ("skills/tells/SKILL.md", "---\nname: tells\ndescription: T.\n---\nTell.\n"),
    ):
        file = kairos.folder / ".claude" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    folder = str(kairos.folder / ".claude/skills")
    said = kairos("doctor", "--offline", "--json", KAIROS_CLAUDE_AGENTS="true", KAIROS_SKILLS=folder)
    agents = [text for state, text in findings(said, "agents") if state == "note"]
    assert ["claude:broken is disabled" in text for text in agents] == [True]
    skills = findings(said, "skills")
    assert skills[0] == ("ok", "1 that read_skill reads")
    assert [(state, "headless" in text) for state, text in skills[1:]] == [("note", True)]


@pytest.mark.parametrize("shown", [12, 20])
def test_what_a_server_wrote_is_not_cut_within_a_known_key(kairos, shown: int) -> None:
    key = "kq-4711-zX9+/pLm=c0ffee"
    behind = "." * (STDERR_CHARS - shown - len("\nlast\n")) + "\nlast\n"
    script = f"import os, sys; sys.stderr.write('x' * 3000 + os.environ['PARTED_TOKEN'] + {behind!r}); sys.exit(3)"
    kairos.state.mkdir(parents=True, mode=0o700)
    (kairos.state / "kairos.toml").write_text(
        f"[servers.x]\ncommand = {json.dumps(sys.executable)}\nargs = {json.dumps(['-c', script])}\n"
        'sandbox = false\nenv = { PARTED_TOKEN = "env:PARTED_TOKEN" }\n'
    )
    said = kairos("doctor", "--json", PARTED_TOKEN=key)
    assert "last" in said.out
    assert key[-shown:] not in said.out


def test_a_server_that_can_t_start_is_named_with_its_exit_and_its_last_line(kairos, tmp_path: Path) -> None:
    breaks = tmp_path / "breaks"
    breaks.touch()
    kairos.state.mkdir(parents=True, mode=0o700)
    (kairos.state / "kairos.toml").write_text(
        f"[servers.x]\ncommand = {json.dumps(sys.executable)}\nargs = {json.dumps([str(PEER), f'breaks={breaks}'])}\n"
        "sandbox = false\n"
    )
    ((state, text),) = [each for each in findings(kairos("doctor", "--json"), "servers") if "could not" in each[1]]
    assert (state, "status 3" in text, "the cause of it all" in text) == ("note", True, True)


def test_what_keeps_a_loader_from_its_registry_is_named_with_its_cure(kairos) -> None:
    kairos.state.mkdir(parents=True, mode=0o700)

    def cure(said: str, more: str = "", **environ: str) -> str:
        script = f"import sys; sys.stderr.write({said!r}); sys.exit(1)"
        (kairos.state / "kairos.toml").write_text(
            f"[servers.x]\ncommand = {json.dumps(sys.executable)}\nargs = {json.dumps(['-c', script])}\n{more}"
        )
        found = kairos("doctor", "--json", **environ).json["findings"]
        return next(each["cure"] for each in found if each["matter"] == "servers" and "could not" in each["text"])

    proxy = {"HTTPS_PROXY": "http://me:pw@proxy.example:3128"}
    assert "NODE_EXTRA_CA_CERTS" in cure("error: invalid peer certificate: UnknownIssuer")
    assert 'env = { HTTPS_PROXY = "env:HTTPS_PROXY" }' in cure("no route", **proxy)
    assert "HTTPS_PROXY" not in cure("no route", 'env = { HTTPS_PROXY = "env:HTTPS_PROXY" }\n', **proxy)
    assert "HTTPS_PROXY" not in cure("no route", HTTPS_PROXY="http://proxy.example:3128")


@pytest.mark.sandbox
def test_a_server_that_writes_into_the_home_folder_is_given_another(kairos) -> None:
    kairos.state.mkdir(parents=True, mode=0o700)
    script = (
        "import os, runpy, sys; os.mkdir(os.path.expanduser('~/.x')); runpy.run_path(sys.argv[1], run_name='__main__')"
    )
    words = f"[servers.x]\ncommand = {json.dumps(sys.executable)}\nargs = {json.dumps(['-c', script, str(PEER)])}\n"
    (kairos.state / "kairos.toml").write_text(words)
    found = kairos("doctor", "--json").json["findings"]
    (cure,) = [each["cure"] for each in found if each["matter"] == "servers" and "could not" in each["text"]]
    assert 'env = { HOME = "/tmp" }' in cure
    (kairos.state / "kairos.toml").write_text(words + 'env = { HOME = "/tmp" }\n')
    assert [state for state, text in findings(kairos("doctor", "--json"), "servers") if "lists" in text] == ["ok"]


def test_a_server_that_takes_no_message_at_its_address_is_told_of_a_bridge(kairos) -> None:
    """What a server of the older HTTP+SSE answers to the first message."""
    kairos.state.mkdir(parents=True, mode=0o700)
    with ThreadingHTTPServer(("127.0.0.1", 0), Refuses) as http:
        threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{http.server_port}/sse"
        (kairos.state / "kairos.toml").write_text(f'[servers.x]\nurl = "{url}"\n')
        found = kairos("doctor", "--json").json["findings"]
        http.shutdown()
    (cure,) = [each["cure"] for each in found if each["matter"] == "servers" and "HTTP 405" in each["text"]]
    assert f'"mcp-remote", "{url}"' in cure


class Refuses(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(405)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def test_an_http_tool_whose_host_is_not_allowed_is_named(kairos) -> None:
    kairos.state.mkdir(parents=True, mode=0o700)
    tool = (
        '[[http_tools]]\nname = "local"\ndescription = "x"\nmethod = "GET"\n'
        'url = "http://192.168.7.7:81/x"\neffect = "read"\n'
    )
    (kairos.state / "kairos.toml").write_text(tool)
    assert len(findings(kairos("doctor", "--json"), "http tools")) == 1
    assert len(_lines_at_start(kairos, "192.168.7.7:81")) == 1
    (kairos.state / "kairos.toml").write_text(f'private_hosts = ["192.168.7.7:81"]\n{tool}')
    assert findings(kairos("doctor", "--json"), "http tools") == []
    assert _lines_at_start(kairos, "192.168.7.7") == []


def _lines_at_start(kairos, named: str) -> list[str]:
    """The lines with this text that a server prints at its start; it ends with its input."""
    return [line for line in kairos("serve").err.splitlines() if named in line]


@pytest.mark.parametrize("words", [(), ("--all",)])
def test_only_what_differs_is_printed_and_all_of_it_on_request(kairos, words: tuple[str, ...]) -> None:
    lines = kairos("doctor", *words, KAIROS_KEEP_DAYS="9").out.splitlines()
    settings = [line for line in lines if line.startswith("  ") and "(" in line and "->" not in line]
    given = [line for line in settings if "(environment)" in line]
    assert any("keep_days" in line for line in given)
    assert len(settings) == (len(SETTINGS) + len(("home", "config")) if words else len(given))
    assert any(line.startswith("ok  ") and "containment" in line for line in lines)
