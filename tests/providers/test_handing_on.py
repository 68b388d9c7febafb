"""A person's command that can't perform a run leaves it to a server that can, and says what became of it."""

from __future__ import annotations

import asyncio
from subprocess import CompletedProcess, run
from sys import executable

import pytest
from support.app import ME, Place, open_checked_app, start_run
from support.environment import plain_environ
from support.provider_server import Standin, calls, talks

from kairos_mcp.app.app import App

CHANGES = ("write_file", {"path": "new.txt", "content": "new\n"})


@pytest.fixture
def changing(server: Standin) -> Standin:
    """It asks for approval to make a file, then ends."""
    server.will(talks(None, calls(CHANGES), finish="tool_calls"), talks("It is made."))
    return server


async def approve(place: Place, run_id: str, key: str) -> CompletedProcess[str]:
    """The command as a person has it who has set no provider."""
    words = [executable, "-P", "-m", "kairos_mcp", "approve", "--home", str(place.home), run_id, key]
    environ = plain_environ()
    return await asyncio.to_thread(run, words, capture_output=True, text=True, timeout=60, check=False, env=environ)


async def asking(app: App) -> tuple[str, str]:
    """A run that waits for approval, and the key that it waits under."""
    run_id = await start_run(app, tools=("write_file",))
    (item,) = (await app.runs.report(run_id, ME)).waiting
    return run_id, item["key"]


async def test_what_a_server_goes_on_with_after_a_command_is_told_as_it_comes(place: Place, changing: Standin) -> None:
    async with open_checked_app(place.settings(model="openai:small", base_url=changing.openai)) as able:
        done = await approve(place, *await asking(able))
    assert (done.returncode, "No server" in done.stdout) == (0, False)
    assert "It is made." in done.stdout
    assert (place.workspace / "new.txt").read_text() == "new\n"


async def test_where_no_server_can_go_on_the_command_says_so_and_what_is_missing(
    place: Place, changing: Standin
) -> None:
    async with App.open(place.settings(model="openai:small", base_url=changing.openai), via="mcp") as able:
        waits = await asking(able)
    done = await approve(place, *waits)
    assert done.returncode == 3
    assert "No server goes on with this run: it needs one with a provider (KAIROS_MODEL)" in done.stdout
    assert not (place.workspace / "new.txt").exists()
