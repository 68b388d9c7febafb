"""Lend the tools of a run a memory in its rows: what a change of files keeps before it begins, for after a crash."""

from __future__ import annotations

import asyncio
from concurrent.futures import TimeoutError as StillWaiting

from kairos_mcp.core.errors import StoreBusy
from kairos_mcp.execution.run_state import RunState
from kairos_mcp.store import tool_memory
from kairos_mcp.store.database import Store
from kairos_mcp.tools.tool import ToolMemory

COMMIT_TIMEOUT_S = 30  # of a tool's note: a commit takes milliseconds; a tool never waits for a loop that has ended


def memory_in_rows(store: Store, state: RunState, owner: int, fence: int) -> ToolMemory:
    """Return the memory of a run's tools, which they use from their threads, through the loop that owns the writer.

    Once this server does not own the run, `keep` and `check_owner` raise FenceLost.
    """
    loop, run, run_id = asyncio.get_running_loop(), state.run.n, state.run.id

    def keep(name: str, text: str) -> None:
        state.has_notes_of_tools = True

        async def commit() -> None:
            await store.submit(
                lambda session: tool_memory.keep_text(session, run, run_id, owner, fence, name, text), of_run=run
            )

        waiting = asyncio.run_coroutine_threadsafe(commit(), loop)
        try:
            waiting.result(COMMIT_TIMEOUT_S)
        except StillWaiting:
            waiting.cancel()
            raise StoreBusy("The store did not take a tool's note in time.", "Try again.") from None

    def recall(name: str) -> str | None:
        with store.read_session() as session:
            return tool_memory.recall(session, run, name)

    def check() -> None:
        with store.read_session() as session:
            tool_memory.check_owner(session, run, run_id, owner, fence)

    return ToolMemory(keep, recall, check)
