"""The toolchains and dependency caches in home folders that programs may read: a fixed list of folders without keys.

A home folder holds keys as well, so nothing else of it is seen. Two folders are searched, the one that HOME names and
the one of the password file: in a container, by `sudo -E` or as a service they are not the same.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from kairos_mcp.core.errors import BadArguments, NotFound, PathDenied
from kairos_mcp.core.paths import plain_path_or_none, shorten_path
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.settings.toml_text import toml_text

HOME_PROGRAMS = (
    *(".asdf", ".bun", ".cargo/bin", ".deno", ".fnm", ".ghcup/bin", ".jenv", ".juliaup", ".local/bin", ".local/lib"),
    *(".local/share/fnm", ".local/share/mise", ".local/share/pipx", ".local/share/pnpm", ".local/share/uv/python"),
    *(".local/share/uv/tools", ".nodenv", ".nvm", ".opam", ".pyenv", ".rbenv", ".rustup", ".rvm", ".sdkman/candidates"),
    *(".volta", "go/bin"),
)
# What package managers have unpacked: they find it below HOME, where only these are read-only.
DEPENDENCY_CACHES = (
    *(".cargo/git", ".cargo/registry", ".cache/pypoetry/virtualenvs", ".cache/yarn", ".gem/ruby", ".hex/packages"),
    *(".ivy2/cache", ".local/lib", ".local/share/gem", ".local/share/virtualenvs", ".m2/repository", ".npm/_cacache"),
    *(".nuget/packages", ".pub-cache", ".yarn/berry/cache", "go/pkg/mod"),
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
_WIDE_FOLDERS = tuple(
    map(
        Path,
        (
            *("/", "/home", "/tmp", "/var", "/var/tmp", "/var/lib", "/opt", "/usr", "/srv", "/mnt", "/media", "/etc"),
            *("/data", "/run", "/proc", "/sys", "/dev"),
        ),
    )
)


def home_folder(environ: Mapping[str, str]) -> Path:
    """Return the person's home folder, one that does not exist where the environment names none."""
    return Path(environ.get("HOME") or "/nonexistent")


def home_folders(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the home folders: the one that the environment names, and the user's in the password file."""
    folders = [home_folder(environ)]
    try:
        import pwd

        folders.append(Path(pwd.getpwuid(os.geteuid()).pw_dir))
    except (ImportError, KeyError):  # no such file on this system, or a container's user without an entry
        pass
    return tuple(dict.fromkeys(folders))


@dataclass(frozen=True, slots=True)
class HomeEntry:
    """A folder of a home folder, and its path below it."""

    path: Path
    name: str


def find_toolchains(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the toolchains that are there. A link to a home folder, or to another wide one, is none."""
    return tuple(dict.fromkeys(entry.path for entry in _find_entries(HOME_PROGRAMS, environ)))


def find_caches(environ: Mapping[str, str]) -> tuple[HomeEntry, ...]:
    """Return the dependency caches that are there; of two of one name the one in the folder that HOME names."""
    found = {entry.name: entry for entry in reversed(_find_entries(DEPENDENCY_CACHES, environ))}
    return tuple(found[name] for name in sorted(found))


def toolchain_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables by which the programs of these toolchains find them."""
    found = {entry.name: str(entry.path) for entry in reversed(_find_entries(HOME_PROGRAMS, environ))}
    return {variable: found[name] for name, variable in _ROOT_VARIABLES.items() if name in found}


def _find_entries(names: Sequence[str], environ: Mapping[str, str]) -> list[HomeEntry]:
    folders = [(os.path.join(home, name), name) for home in home_folders(environ) for name in names]
    return [
        HomeEntry(Path(folder), name)
        for folder, name in folders
        if os.path.isdir(folder) and not is_wide(Path(os.path.realpath(folder)), environ)
    ]


def shown_path(path: Path, environ: Mapping[str, str]) -> str:
    """Return a path as a person writes it, `~` for the home folder."""
    home = home_folder(environ)
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) and path != home else str(path)


def find_asked_path(text: str, environ: Mapping[str, str], workspace: Path) -> Path:
    """Return the folder or file that a call asks to let its program read; one of the workspace is named relative to it.

    None is reached by a link in the workspace: a program could have made that, and no person sees where it leads.
    Raises BadArguments, PathDenied, NotFound.
    """
    inner = None if text.startswith("~") else plain_path_or_none(text)
    if inner is not None:
        path = workspace / inner
    elif text.startswith(("/", "~/")) and "\0" not in text:
        path = home_folder(environ) / text[2:] if text.startswith("~/") else Path(text)
    else:
        raise BadArguments(
            f"reads names {shorten_path(text)!r}.", "It takes absolute paths, ones below ~, and ones in the workspace."
        )
    real = Path(os.path.realpath(path))
    if any(Path(os.path.realpath(each)).is_relative_to(workspace) for each in (path, *path.parents)):
        if inner is None:
            raise PathDenied(f"{shorten_path(text)} leads through the workspace.", "Name it relative to the workspace.")
        if real != path:
            raise PathDenied(f"{shorten_path(text)} is behind a link.", "Name what the link leads to.")
    if is_wide(real, environ):
        raise PathDenied(
            f"{shorten_path(text)} holds more than a program needs.", "Name the folder that it needs in it."
        )
    if not real.exists():
        raise NotFound(f"There is no {shorten_path(text)}.", "Name what the program needs where it is installed.")
    return path


def is_wide(folder: Path, environ: Mapping[str, str]) -> bool:
    """Whether a folder holds much more than a toolchain: a home folder, one above it, or a folder of the system."""
    return folder in _WIDE_FOLDERS or any(
        Path(os.path.realpath(home)).is_relative_to(folder) or home.is_relative_to(folder)
        for home in home_folders(environ)
    )


def reading_folder(program: Path, environ: Mapping[str, str]) -> Path:
    """Return what programs have to read to start this one: its folder, or where that is wide, its file."""
    folders = (program.parent.parent, program.parent) if program.parent.name == "bin" else (program.parent,)
    return next((folder for folder in folders if not is_wide(folder, environ)), program)


def reading_line(program: Path, configured: Sequence[Path], environ: Mapping[str, str]) -> str:
    """Return the line of the settings file that lets programs read this one where it is installed.

    `configured`: what the line lets them read now. The home folder, or one as wide, is never named.
    """
    paths = dict.fromkeys((*configured, reading_folder(program, environ)))
    return f"command_reads = {toml_text([shown_path(path, environ) for path in paths])}"
