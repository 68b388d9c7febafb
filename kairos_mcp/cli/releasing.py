"""`status --release OWNER`: takes the runs of a server that was stopped, or hangs, for whoever comes next."""

from __future__ import annotations

import os

from kairos_mcp.app.app import App
from kairos_mcp.cli.exit_codes import COMPLETED
from kairos_mcp.cli.session import PERSON, with_host
from kairos_mcp.cli.speech import say, say_json
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags


def release(flags: Flags, owner: int, *, as_json: bool) -> int:
    """What it still commits of these runs is refused, so nothing of them is done twice."""

    async def take(host: App) -> int:
        return await host.release(owner, PERSON)

    runs = with_host(load_settings(flags, os.environ), take)
    if as_json:
        say_json({"owner": owner, "released": runs})
    else:
        what = "run" if runs == 1 else "runs"
        say(f"Released {runs} {what} of owner {owner}; the next server that is asked goes on.")
    return COMPLETED
