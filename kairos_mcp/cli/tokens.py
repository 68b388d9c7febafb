"""`token`: who may come in over HTTP."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from kairos_mcp.cli.exit_codes import COMPLETED
from kairos_mcp.cli.output import commands_of
from kairos_mcp.cli.speech import say, say_json, tell
from kairos_mcp.server.tokens import TokenStore
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags


def add_token(flags: Flags, name: str, *, as_json: bool) -> int:
    """The token alone is on stdout, for a pipe; what to do with it stands beside."""
    text = _tokens(flags).add(name)
    if as_json:
        say_json({"name": name, "token": text})
    else:
        say(text)
        tell("This is shown once. Clients send it as `Authorization: Bearer TOKEN`.")
    return COMPLETED


def list_tokens(flags: Flags, *, as_json: bool) -> int:
    listed = _tokens(flags).list_tokens()
    if as_json:
        say_json({"tokens": [{"name": token.name, "made_at": token.made_at} for token in listed]})
        return COMPLETED
    if not listed:
        say(commands_of(flags).complete_all("No tokens; `kairos-mcp token add NAME` makes one."))
    for token in listed:
        made = datetime.fromtimestamp(token.made_at / 1000, UTC)
        say(f"{token.name:<40} {made:%Y-%m-%d %H:%M} UTC")
    return COMPLETED


def revoke_token(flags: Flags, name: str) -> int:
    tokens = _tokens(flags)
    tokens.revoke(name)
    say(f"{name} is revoked; its runs are kept, and belong to whoever gets a token of that name.")
    if not tokens.any():
        tell("That was the last one. A server started on this machine alone will now ask for none.")
    return COMPLETED


def _tokens(flags: Flags) -> TokenStore:
    return TokenStore(load_settings(flags, os.environ).home)
