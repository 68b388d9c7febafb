"""The protection scopes of one workspace: where the server's own files lie in it, found by real paths."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import kairos_mcp
from kairos_mcp.core.scopes import INSTRUCTION_GLOBS, OWN_GLOBS, Scopes
from kairos_mcp.settings.settings import Settings

_OURS = (*OWN_GLOBS, "git~1", ".kairos", ".kairos-*")  # by its short name on NTFS; what a write leaves beside a file


def scopes_of(workspace: Path, settings: Settings | None = None) -> Scopes:
    """L0 holds our package, and under these settings the state folder, the configuration and the script; L1 the
    folders of skills that a person named, and what they called instructions."""
    skills: list[Path] = []
    named: tuple[str, ...] = ()
    if settings is not None:
        skills += settings.skills
        named = settings.instructions
    real = Path(os.path.realpath(workspace))
    inside, advice = _inside(real, server_paths(settings)), _inside(real, skills)
    return Scopes((*_OURS, *inside), (*INSTRUCTION_GLOBS, *named, *advice))


def server_paths(settings: Settings | None = None) -> tuple[Path, ...]:
    """The server's own files and folders, wherever they lie: its code, its state, its configuration, its script."""
    given: tuple[Path | None, ...] = ()
    if settings is not None:
        given = (settings.home, *settings.config_dirs, settings.config_file, settings.script)
    return (package_folder(), *(path for path in given if path is not None))


def _inside(workspace: Path, folders: Iterable[Path]) -> tuple[str, ...]:
    """Globs of what of these lies in the workspace."""
    return tuple(dict.fromkeys(glob for path in folders for glob in _globs(workspace, Path(os.path.realpath(path)))))


def package_folder() -> Path:
    """The folder of our own code."""
    return Path(os.path.realpath(Path(kairos_mcp.__file__).parent))


def _globs(workspace: Path, own: Path) -> Iterator[str]:
    """As globs of paths in the workspace. A file at its top is ours at any depth, since a glob without / is."""
    if workspace.is_relative_to(own):
        yield "*"
    elif own.is_relative_to(workspace):
        within = "".join(f"[{c}]" if c in "*?[" else c for c in own.relative_to(workspace).as_posix())
        if "/" in within or not own.is_dir():
            yield within
        yield f"{within}/*"
