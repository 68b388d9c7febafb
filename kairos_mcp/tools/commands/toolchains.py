"""The toolchains in a home folder that programs may read: a fixed list, since a home folder holds keys as well."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

HOME_PROGRAMS = (
    *(".asdf", ".bun", ".cargo/bin", ".deno", ".local/bin", ".local/share/mise", ".local/share/pnpm"),
    *(".local/share/uv", ".nvm", ".pyenv", ".rustup", ".volta"),
)
_ROOT_VARIABLES: Mapping[str, str] = {
    ".asdf": "ASDF_DATA_DIR",
    ".local/share/mise": "MISE_DATA_DIR",
    ".nvm": "NVM_DIR",
    ".pyenv": "PYENV_ROOT",
    ".rustup": "RUSTUP_HOME",
    ".volta": "VOLTA_HOME",
}
"""By which variable a toolchain's programs find it: the home folder that they see is another one, and empty."""
_WIDE_FOLDERS = tuple(map(Path, ("/", "/home", "/tmp", "/var/tmp", "/opt", "/usr")))


def home_folder(environ: Mapping[str, str]) -> Path:
    """Return the person's home folder, one that does not exist where the environment names none."""
    return Path(environ.get("HOME") or "/nonexistent")


def find_toolchains(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the toolchains that are there. A link to the home folder, or to one above it, is none."""
    home = home_folder(environ)
    real_home = Path(os.path.realpath(home))
    found = (home / name for name in HOME_PROGRAMS)
    return tuple(path for path in found if path.is_dir() and not real_home.is_relative_to(os.path.realpath(path)))


def toolchain_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which the programs of these toolchains find them."""
    home, found = home_folder(environ), find_toolchains(environ)
    return {variable: str(home / name) for name, variable in _ROOT_VARIABLES.items() if home / name in found}


def shown_path(path: Path, environ: Mapping[str, str]) -> str:
    """Return a path as a person writes it, `~` for the home folder."""
    home = home_folder(environ)
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) and path != home else str(path)


def reading_line(program: Path, configured: Sequence[Path], environ: Mapping[str, str]) -> str:
    """Return the line of the settings file that lets programs read this one where it is installed.

    `configured`: what the line lets them read now. The home folder, or one as wide, is never named.
    """
    folders = (program.parent.parent, program.parent) if program.parent.name == "bin" else (program.parent,)
    home = home_folder(environ)
    narrow = [folder for folder in folders if folder not in _WIDE_FOLDERS and not home.is_relative_to(folder)]
    paths = dict.fromkeys((*configured, *(narrow or [program])[:1]))
    return f"command_reads = [{', '.join(_toml_text(shown_path(path, environ)) for path in paths)}]"


def _toml_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
