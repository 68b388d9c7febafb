"""Folders that are found and not set: the current one, the home, ours and those that follow from settings."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from kairos_mcp.core.errors import ConfigError
from kairos_mcp.settings.settings import Settings


def current_folder() -> Path:
    """Return the current folder of this process. Raises ConfigError where it was removed."""
    try:
        return Path.cwd().resolve()
    except OSError as error:
        raise ConfigError("The current folder was removed.", "Change to one that exists.") from error


def user_home() -> Path:
    """Return the user's home folder. Raises ConfigError if there is none, as for a user without a name."""
    try:
        return Path.home().resolve()
    except (OSError, RuntimeError) as error:
        raise ConfigError("There is no home folder.", "Set HOME.") from error


def absolute_path(text: str, parent: Path | None = None) -> Path:
    """Return the path, relative to `parent`, or else to the current folder. Raises ConfigError."""
    try:
        return (Path(parent or "") / Path(text).expanduser()).absolute()
    except (RuntimeError, OSError) as error:
        raise ConfigError(f"The path {text!r} can't be resolved: {error}.", "Give an absolute path.") from error


def packaged_folder(name: Literal["config", "skills"]) -> Path:
    """Return our own folder of this name: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).parent.parent
    inside = package / f"_{name}"
    return inside if inside.is_dir() else package.parent / name


def skill_folders(settings: Settings) -> tuple[Path, ...]:
    """Return the folders of skills for clients: ours, and those of `run_skill_folders`; a later one wins."""
    return (packaged_folder("skills"), *run_skill_folders(settings))


def run_skill_folders(settings: Settings) -> tuple[Path, ...]:
    """Return the folders of skills for runs: the user's, and those in the settings; a later one wins.

    Ours say how to use this server's tools, which a run does not have.
    """
    return (*(folder / "skills" for folder in settings.config_dirs[1:]), *settings.skills)


def has_own_agents(settings: Settings) -> bool:
    """Whether there may be agents besides ours: a folder of the user's, or those of a workspace."""
    return settings.claude_agents or (settings.config_dirs[-1] / "agents").is_dir()
