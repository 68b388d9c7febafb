"""What is logged reaches clients over every transport, in both eras; those that asked for nothing get nothing."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from support.http_server import META, SECONDS, Site
from support.line_client import Peer
from support.logged import Logged, set_level

EDIT = {"path": "a.txt", "old_string": "alpha\n", "new_string": "omega\n"}
LINES = ({"tool_calls": [{"name": "edit_file", "arguments": EDIT}]}, {"content": "Done.", "finish": "stop"})


@pytest.fixture(scope="module")
def script_site(tmp_path_factory: pytest.TempPathFactory):
    place = tmp_path_factory.mktemp("logged")
    (place / "script.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    site = Site.start(place)
    yield site
    site.stop()


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_a_client_is_told_from_its_level_on(script_site: Site, era: str, transport: str) -> None:
    way, logged, unasked = f"{era} {transport}", Logged(), Logged()
    async with script_site.client(way, logging_callback=logged, log_level="notice") as client:
        if era == "legacy":
            await set_level(client, "notice")
        edits = {"goal": f"edit it, {way}", "tools": ["edit_file"]}
        run_id = (await client.call_tool("planner_run", edits)).structured_content["run_id"]
        await logged.until(lambda: logged.of("approval_waits"))
        await client.call_tool("run_control", {"run_id": run_id, "action": "cancel"})
        await logged.until(lambda: logged.of("run_ended"))
    events = [(level, data["event"], data["run_id"]) for level, _, data in logged.entries]
    assert events == [("notice", "approval_waits", run_id), ("notice", "run_ended", run_id)]
    async with script_site.client(way, logging_callback=unasked) as client:
        await client.call_tool("planner_run", {"goal": f"unasked, {way}", "tools": ["edit_file"]})
        await client.list_tools()
    assert unasked.entries == []
    assert script_site.is_quiet()


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_over_stdio_it_comes_between_the_answers(tmp_path: Path, era: str) -> None:
    peer = Peer.start(tmp_path / "home")
    more: dict[str, Any] = {}
    if era == "legacy":
        peer.greet()
        peer.result("logging/setLevel", {"level": "notice"})
    else:
        more["_meta"] = {**META, "io.modelcontextprotocol/logLevel": "notice"}
    arguments = {"goal": "look", "route": "caller"}
    begun = peer.result("tools/call", {"name": "planner_run", "arguments": arguments, **more})
    run_id = begun["structuredContent"]["run_id"]
    cancel = {"name": "run_control", "arguments": {"run_id": run_id, "action": "cancel"}, **more}
    number, messages, until_s = peer.ask("tools/call", cancel), [peer.read()], time.monotonic() + SECONDS
    while len(messages) < 2:
        assert time.monotonic() < until_s
        messages.append(peer.read())
    (told,) = [each["params"] for each in messages if each.get("method") == "notifications/message"]
    assert [each["id"] for each in messages if "id" in each] == [number]
    assert (told["level"], told["logger"]) == ("notice", "kairos.run")
    assert (told["data"]["event"], told["data"]["run_id"]) == ("run_ended", run_id)
    peer.stop()
