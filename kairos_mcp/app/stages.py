"""The stages of this server's runs: whether a workspace can have one, whose it is, and when it goes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from kairos_mcp.core.calendar import DAY_MS
from kairos_mcp.core.errors import UnknownRun
from kairos_mcp.settings.settings import Settings, StageMode
from kairos_mcp.specs.stage import NO_STAGE, StageChoice
from kairos_mcp.store import queries
from kairos_mcp.store.database import Store
from kairos_mcp.store.rows import Session
from kairos_mcp.tools.commands.run_command import CommandSettings
from kairos_mcp.tools.files.edit_tools import EditRules
from kairos_mcp.tools.files.workspace import Workspace
from kairos_mcp.tools.stage.copies import COPY, WorkspaceCopy
from kairos_mcp.tools.stage.layers import Layer
from kairos_mcp.tools.stage.mounts import Mounts
from kairos_mcp.tools.stage.overlay import UPPER, Overlay
from kairos_mcp.tools.stage.probe import StageWay, find_stage_way
from kairos_mcp.tools.stage.stage import Stage, discard_folder, has_pending_changes
from kairos_mcp.tools.stage.staged_tools import STAGE_SPECS, StagedTools

STAGES = "stages"  # the folder of them in the state folder


def find_way(settings: Settings, workspace: Path, mounts: Mounts | None = None) -> StageWay:
    """Find out how runs in this workspace can have a stage. Blocks for some 100 ms."""
    if settings.store is not None and settings.place is None:
        return StageWay("the rows are in a database, and this server has no place")
    commands, own = CommandSettings.from_settings(settings), mounts or Mounts()
    try:
        return find_stage_way(workspace, settings.home / STAGES, own, commands)
    finally:
        if mounts is None:
            own.close()


class Stages:
    """The stages below one state folder."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings, self._store = settings, store
        self._folder = settings.home / STAGES
        self._mounts = Mounts()
        self._ways: dict[str, StageWay] = {}  # by workspace; a problem is looked for again, since a person may mend it

    async def choose(self, mode: StageMode, workspace: str | None, continues: str | None) -> StageChoice:
        """Say whether a run is to work in a stage. `continues`: the run whose stage it takes over, if something is left
        in it."""
        if mode is False or workspace is None:
            return NO_STAGE
        await self._sweep()
        way = await asyncio.to_thread(self._find_way, Path(workspace))
        left = None
        if continues is not None:
            left = await asyncio.to_thread(self._find_left, continues)
        return StageChoice(True, mode is True, way.problem, way.no_layer, STAGE_SPECS, left)

    def make_tools(
        self,
        run_id: str,
        stage: str,
        rules: EditRules,
        before: str | None,
        read_inherited: Callable[[], Sequence[str]],
    ) -> StagedTools:
        """Make the tools of a run's stage. `stage`: the run that began it; `before`: the one that had it before;
        `read_inherited`: returns the notes of all that did."""
        commands = CommandSettings.from_settings(self._settings)
        find_layer = partial(self._find_layer, rules.workspace)
        made = Stage(self._folder / stage, rules.workspace, find_layer, run_id, before, read_inherited)
        return StagedTools(made, rules, commands, self._settings.stage_bytes)

    def close(self) -> None:
        self._mounts.close()

    def _find_layer(self, workspace: Workspace, folder: Path) -> Layer:
        """Return the layer in a stage's folder; of a stage that is yet to begin, the best that there can be."""
        if not (folder / UPPER).exists() and ((folder / COPY).exists() or self._find_way(workspace.path).no_layer):
            return WorkspaceCopy(folder, workspace)
        return Overlay(folder, workspace, self._mounts)

    def _find_way(self, workspace: Path) -> StageWay:
        way = self._ways.get(str(workspace))
        if way is None:
            way = find_way(self._settings, workspace, self._mounts)
            if way == StageWay():
                self._ways[str(workspace)] = way
        return way

    def _find_left(self, run_id: str) -> str | None:
        """Return the stage of an ended run in which something is left, by the id of the run that began it."""
        for folder in self._list_folders():
            if has_pending_changes(folder) and Stage.owner_of(folder) == run_id:
                return folder.name
        return None

    def _list_folders(self) -> list[Path]:
        try:
            return [path for path in self._folder.iterdir() if not path.name.startswith("probe-")]
        except OSError:
            return []

    async def _sweep(self) -> None:
        """Remove the stages of runs that have ended: once nothing is left in them, else after `stage_days`; and those
        of runs that are gone."""
        for folder in await asyncio.to_thread(self._list_folders):
            owner = Stage.owner_of(folder)

            def is_over(session: Session, folder: Path = folder, owner: str | None = owner) -> bool:
                try:
                    run = queries.run_by_id(session, owner or folder.name)
                except UnknownRun:
                    return True
                kept_ms = self._settings.stage_days * DAY_MS if has_pending_changes(folder) else 0
                return run.ended_at is not None and run.ended_at + kept_ms <= time.time_ns() // 1_000_000

            if await self._store.read(is_over):
                await asyncio.to_thread(discard_folder, folder)
