"""`rules list, remove`: remembered approvals, which `approve --always` makes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from kairos_mcp.cli.exit_codes import COMPLETED
from kairos_mcp.cli.options import AllFlags, AllWorkspaces, AsJson, StateFlags
from kairos_mcp.cli.output import command_line_for, workspace_name
from kairos_mcp.cli.session import person_for, with_app
from kairos_mcp.cli.settings import read_settings, settings_for_list
from kairos_mcp.cli.terminal import emit
from kairos_mcp.core.identity import LOCAL
from kairos_mcp.core.text import format_age
from kairos_mcp.settings.settings import Flags

if TYPE_CHECKING:
    from kairos_mcp.app.app import App
    from kairos_mcp.app.rules import ListedRule

Whose = Annotated[str, typer.Option("--principal", metavar="NAME", help="Whose: the name of a token.")]


def list_rules(
    *, everywhere: AllWorkspaces = False, principal: Whose = LOCAL, as_json: AsJson = False, flags: AllFlags
) -> int:
    """List what was allowed from then on: where, which calls, and in which run it was approved."""
    settings = settings_for_list(flags)
    caller, everywhere = person_for(principal), everywhere or not settings.workspaces

    async def read_rules(app: App) -> list[ListedRule]:
        return await app.rules.list_all(caller, everywhere=everywhere)

    found = with_app(settings, read_rules)
    emit({"rules": [each.as_json() for each in found]}, _lines(found, flags), as_json=as_json)
    return COMPLETED


def remove(
    rule: Annotated[int, typer.Argument(metavar="RULE", min=1, help="Its number, as `rules list` shows it.")],
    *,
    principal: Whose = LOCAL,
    as_json: AsJson = False,
    flags: StateFlags,
) -> int:
    """Remove a remembered approval: from the next call on a person is asked again."""
    caller = person_for(principal)

    async def remove_rule(app: App) -> ListedRule:
        return await app.rules.remove(rule, caller)

    removed = with_app(read_settings(flags), remove_rule)
    emit({"removed": removed.as_json()}, [f"removed: {removed.rule.name}, {removed.rule.description}"], as_json=as_json)
    return COMPLETED


def _lines(found: list[ListedRule], flags: Flags) -> Iterator[str]:
    if not found:
        yield command_line_for(flags).complete_all("Nothing is remembered here; `kairos-mcp approve --always` does it.")
    for each in found:
        rule = each.rule
        where = f"run {rule.run_id}" if rule.run_id else workspace_name(rule.workspace or None)
        why = "" if each.counts else "  [counts no more: the folder is another one now]"
        yield f"{rule.id:>4} {format_age(each.age_s):>6} {where:<20} {rule.description}{why}"
