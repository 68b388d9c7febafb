"""`flow`: what each call of a run would have been asked about for what it takes along; `trust`: files of others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from kairos_mcp.cli.exit_codes import COMPLETED
from kairos_mcp.cli.options import AllFlags, AsJson, Run
from kairos_mcp.cli.session import PERSON, find_target, with_app
from kairos_mcp.cli.settings import settings_for_list
from kairos_mcp.cli.terminal import emit
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.text import count_of
from kairos_mcp.settings.folders import current_folder

if TYPE_CHECKING:
    from kairos_mcp.app.app import App
    from kairos_mcp.execution.flow_view import JudgedCall
    from kairos_mcp.store.foreign_files import ForeignFile


def flow(run: Run, *, as_json: AsJson = False, flags: AllFlags) -> int:
    """Show which calls of a run would need approval for the words that they carry, by the current settings."""
    target = find_target(flags, run)

    async def judge(app: App) -> list[JudgedCall]:
        return await app.records.flow(target.run_id, target.caller)

    judged = with_app(target.settings, judge)
    shown = {"run_id": target.run_id, "calls": [each.as_json() for each in judged]}
    emit(shown, _lines(judged), as_json=as_json)
    return COMPLETED


def _workspace_of(path: str, found: Mapping[str, Sequence[ForeignFile]]) -> str:
    """Return the workspace that a person means by the path of a file: the one where they are, else the only one that
    has such a file. Raises BadArguments where several have."""
    here = [each for each in found if current_folder().is_relative_to(each)]
    holding = here or [each for each, files in found.items() if path in [file.path for file in files]]
    if len(holding) > 1:
        raise BadArguments(
            f"Several workspaces have a file {path} of others: {', '.join(sorted(holding))}.",
            "Name the one that you mean: --workspace DIR.",
        )
    return holding[0] if holding else ""


def _lines(judged: Sequence[JudgedCall]) -> Iterator[str]:
    for each in judged:
        yield f"{each.path}  {each.tool}  {'asks' if each.found else 'clean'}"
        yield from (f"  {finding['says']}" for finding in each.as_json()["findings"])
    asked = sum(bool(each.found) for each in judged)
    yield f"{asked} of {count_of(len(judged), 'call')} that may take something along would be asked about."


def trust(
    path: Annotated[str | None, typer.Argument(metavar="FILE", help="One of them; without it they are listed.")] = None,
    *,
    as_json: AsJson = False,
    flags: AllFlags,
) -> int:
    """List the files that runs wrote from texts of others, or treat the words of one as your own."""
    settings = settings_for_list(flags)

    async def trust_or_list(app: App) -> dict[str, list[ForeignFile]]:
        found = await app.answers.list_foreign_files()
        if path is not None:
            await app.answers.trust_file(_workspace_of(path, found), path, PERSON)
        return await app.answers.list_foreign_files() if path is not None else found

    found = with_app(settings, trust_or_list)
    files = [(workspace, file) for workspace, files in found.items() for file in files]
    shown = [
        {"workspace": workspace, "path": file.path, "run_id": file.run_id, "call": file.step}
        for workspace, file in files
    ]
    lines = [f"{file.path}  written by {file.step} of {file.run_id}" for _, file in files]
    said = [f"trusted: {path}"] if path is not None else lines or ["No file here is known to hold texts of others."]
    emit({"trusted": path, "foreign_files": shown}, said, as_json=as_json)
    return COMPLETED
