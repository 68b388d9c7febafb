"""A secret in what a downstream server lists becomes no row, and the tool can be called all the same."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from support.app import ME, Place, rests

from kairos_mcp.app.app import App
from kairos_mcp.settings.table_values import ServerSetting

PEER = Path(__file__).parent.parent / "downstream" / "peer.py"
SHAPED, GIVEN = "sk-proj-abcDEF0123456789abcdef", "kq-4711-zX9-pLm-c0ffee"


async def test_a_listed_secret_becomes_no_row_and_its_tool_is_called(place: Place) -> None:
    """One that has the shape of a key, and one that the server was given by its configuration."""
    listing = place.root / "listing.json"
    schema = {"type": "object", "properties": {"text": {"type": "string", "default": GIVEN}}}
    about = f"Says it. Use {SHAPED} or {GIVEN}."
    listing.write_text(json.dumps([{"name": "echo", "description": about, "inputSchema": schema}]))
    key = place.root / "key"
    key.write_text(GIVEN)
    key.chmod(0o600)
    command = (sys.executable, str(PEER), f"listing={listing}")
    server = ServerSetting("x", command, sandbox=False, effects=(("echo", "read"),), env=(("PEER_KEY", f"file:{key}"),))
    async with App.open(place.settings(servers=(server,)), via="mcp") as app:
        run_id = await app.runs.start_call("x__echo", {"text": "hello"}, ME)
        report = await rests(app, run_id)
        assert (report.status, report.output) == ("completed", {"content": "hello", "is_error": False})
    written = b"".join(path.read_bytes() for path in place.home.glob("kairos.db*"))
    assert SHAPED.encode() not in written
    assert GIVEN.encode() not in written
