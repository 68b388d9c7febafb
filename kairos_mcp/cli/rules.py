"""`rules list, remove`: remembered approvals, which `approve --always` makes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from kairos_mcp.cli.exit_codes import COMPLETED
from kairos_mcp.cli.options import AllFlags, AllWorkspaces, AsJson
from kairos_mcp.cli.output import command_line_for, workspace_name
from kairos_mcp.cli.session import person_for, with_app
from kairos_mcp.cli.settings import settings_for_list
from kairos_mcp.cli.terminal import emit
from kairos_mcp.core.decision_rights import LOCAL
from kairos_mcp.core.text import count_of, format_age
from kairos_mcp.settings.folders import current_folder
from kairos_mcp.settings.settings import Flags, Settings

if TYPE_CHECKING:
    from kairos_mcp.app.answers import ListedRule
    from kairos_mcp.app.app import App
    from kairos_mcp.store.rules import RuleRow

Whose = Annotated[str, typer.Option("--principal", metavar="NAME", help="Whose: the name of a token.")]


def list_rules(
    *, everywhere: AllWorkspaces = False, principal: Whose = LOCAL, as_json: AsJson = False, flags: AllFlags
) -> int:
    """List remembered approvals: where, which calls, and in which run each was approved."""
    settings = settings_for_list(flags)
    caller, everywhere = person_for(principal), everywhere or not settings.workspaces

    async def read_rules(app: App) -> tuple[list[ListedRule], int]:
        found = await app.answers.list_rules(caller, everywhere=everywhere)
        return found, len(await app.answers.list_rules(caller, everywhere=True)) - len(found)

    found, elsewhere = with_app(settings, read_rules)
    value = {"rules": [each.as_json() for each in found], "elsewhere": elsewhere}
    emit(value, _lines(found, elsewhere, flags), as_json=as_json)
    return COMPLETED


def remove(
    rule: Annotated[int, typer.Argument(metavar="RULE", min=1, help="Its number, as `rules list` shows it.")],
    *,
    everywhere: Annotated[bool, typer.Option("--all", help="Also one of another workspace.")] = False,
    principal: Whose = LOCAL,
    as_json: AsJson = False,
    flags: AllFlags,
) -> int:
    """Remove a remembered approval: from the next call on a person is asked again."""
    settings = settings_for_list(flags)
    caller, everywhere = person_for(principal), everywhere or not settings.workspaces

    async def remove_rule(app: App) -> ListedRule:
        return await app.answers.remove_rule(rule, caller, everywhere=everywhere)

    removed = with_app(settings, remove_rule)
    where = removed.rule.workspace or "no workspace"
    line = f"removed: {removed.rule.name}, {removed.rule.description}; it was for {where}"
    emit({"removed": removed.as_json()}, [line], as_json=as_json)
    return COMPLETED


def removal_arguments(rule: RuleRow, settings: Settings) -> list[str]:
    """Return the arguments of the command that removes a rule, run from the current folder without a workspace."""
    is_kept = settings.origins["workspaces"] in ("file", "environment")
    here = map(str, settings.workspaces if is_kept else (current_folder(),))
    return ["rules", "remove", str(rule.id), *([] if rule.workspace in ("", *here) else ["--all"])]


def _lines(found: list[ListedRule], elsewhere: int, flags: Flags) -> Iterator[str]:
    if not found:
        yield command_line_for(flags).complete_all("Nothing is remembered here; `kairos-mcp approve --always` does it.")
    for each in found:
        rule = each.rule
        where = f"run {rule.run_id}" if rule.run_id else workspace_name(rule.workspace or None)
        why = "" if each.counts else "  [counts no more: the folder is another one now]"
        yield f"{rule.name:<8} {format_age(each.age_s):>6} old  in {where:<20} {rule.description}{why}"
    if elsewhere:
        yield f"{count_of(elsewhere, 'rule')} of other workspaces: --all shows all"
