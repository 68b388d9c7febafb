"""Lends the tools of a run a memory in its rows: from their threads, through the loop that owns the writer."""

from __future__ import annotations

import asyncio
from concurrent.futures import TimeoutError as StillWaiting

from kairos_mcp.core.errors import StoreBusy
from kairos_mcp.store import tool_memory
from kairos_mcp.store.database import Store
from kairos_mcp.tools.tool import ToolMemory

COMMIT_TIMEOUT_S = 30  # a commit takes milliseconds; a tool never waits for a loop that has ended


def run_memory(store: Store, run: int, run_id: str, owner: int, fence: int) -> ToolMemory:
    """Return the memory of a run that this server owns; once it does not, `keep` and `check_owner` raise FenceLost."""
    loop = asyncio.get_running_loop()

    def keep(name: str, text: str) -> None:
        async def commit() -> None:
            await store.submit(
                lambda connection: tool_memory.keep_text(connection, run, run_id, owner, fence, name, text)
            )

        waiting = asyncio.run_coroutine_threadsafe(commit(), loop)
        try:
            waiting.result(COMMIT_TIMEOUT_S)
        except StillWaiting:
            waiting.cancel()
            raise StoreBusy("The store did not take a tool's note in time.", "Try again.") from None

    def recall(name: str) -> str | None:
        with store.read_connection() as connection:
            return tool_memory.recall(connection, run, name)

    def check() -> None:
        with store.read_connection() as connection:
            tool_memory.check_owner(connection, run, run_id, owner, fence)

    return ToolMemory(keep, recall, check)
