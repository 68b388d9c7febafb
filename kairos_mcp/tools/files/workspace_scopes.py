"""Builds the protection scopes of one workspace: which of its paths are the server's own files, by real paths."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import kairos_mcp
from kairos_mcp.core.instruction_files import INSTRUCTION_GLOBS
from kairos_mcp.core.paths import OWN_GLOBS, Scopes
from kairos_mcp.settings.settings import Settings

# `.git` by its short name on NTFS; staging files that a write makes beside a file.
_OWN_GLOBS = (*OWN_GLOBS, "git~1", ".kairos", ".kairos-*")


def build_scopes(workspace: Path, settings: Settings | None = None) -> Scopes:
    """Build the scopes of a workspace.

    L0, which no run writes, holds our package and, under these settings, the state folder, the configuration and the
    script. L1, instructions, holds the folders of skills and what a person called instructions in the settings.
    """
    skills: list[Path] = []
    instructions: tuple[str, ...] = ()
    if settings is not None:
        skills += settings.skills
        instructions = settings.instructions
    real = Path(os.path.realpath(workspace))
    own_globs, skill_globs = _globs_in_workspace(real, server_paths(settings)), _globs_in_workspace(real, skills)
    return Scopes((*_OWN_GLOBS, *own_globs), (*INSTRUCTION_GLOBS, *instructions, *skill_globs))


def server_paths(settings: Settings | None = None) -> tuple[Path, ...]:
    """Return the server's own files and folders, wherever they lie: its code, state, configuration and script."""
    paths: tuple[Path | None, ...] = ()
    if settings is not None:
        paths = (settings.home, *settings.config_dirs, settings.config_file, settings.script)
    return (package_folder(), *(path for path in paths if path is not None))


def _globs_in_workspace(workspace: Path, folders: Iterable[Path]) -> tuple[str, ...]:
    """Return globs for those of these folders that lie in the workspace."""
    return tuple(
        dict.fromkeys(glob for path in folders for glob in _path_globs(workspace, Path(os.path.realpath(path))))
    )


def package_folder() -> Path:
    """Return the folder of our own code."""
    return Path(os.path.realpath(Path(kairos_mcp.__file__).parent))


def _path_globs(workspace: Path, path: Path) -> Iterator[str]:
    """Yield globs for one path in the workspace. A file at the top is matched at any depth, since its glob has no /."""
    if workspace.is_relative_to(path):
        yield "*"
    elif path.is_relative_to(workspace):
        within = "".join(f"[{c}]" if c in "*?[" else c for c in path.relative_to(workspace).as_posix())
        if "/" in within or not path.is_dir():
            yield within
        yield f"{within}/*"
