"""All settings with what is said of each: as the file that `init` writes, and for the table in docs/settings.md."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from kairos_mcp.core.limits import DAY_UNITS, UNITS
from kairos_mcp.settings.names import KEYS, default_value
from kairos_mcp.settings.schema import TABLES
from kairos_mcp.settings.tables import REMOTE_KEYS, StrictTable
from kairos_mcp.settings.toml_text import toml_text

_WIDTH = 118  # of a comment, after its "# "


class Explained(NamedTuple):
    """A setting, or a key of a table. `default` and `example` are TOML, "" if absent."""

    name: str
    about: str
    default: str
    example: str

    @property
    def line(self) -> str:
        """The line of a settings file that sets it to its default, or else as in the example."""
        return f"{self.name} = {self.default or self.example}"


class Section(NamedTuple):
    heading: str
    """The line that begins its table in the settings file; "" for settings that are in none."""
    prefix: str
    """What names of its keys begin with where all are listed."""
    about: str
    keys: tuple[Explained, ...]


def list_sections() -> Iterator[Section]:
    """Yield the parts of the settings file in their order."""
    plain = [
        Explained(name, key.about, _toml_unless_none(default_value(name)), _toml_unless_none(key.example))
        for name, key in KEYS.items()
        if name not in ("limits", "day", *TABLES)
    ]
    yield Section("", "", "", tuple(plain))
    for group, units, times in (("limits", tuple(UNITS.values()), 1), ("day", DAY_UNITS, 10)):
        limits = [
            Explained(
                unit.name,
                unit.explained,
                _toml_unless_none(default_value(f"{group}.{unit.name}")),
                toml_text(unit.example * times),
            )
            for unit in units
        ]
        yield Section(f"[{group}]", f"{group}.", KEYS[group].about, tuple(limits))
    for group, (heading, table) in TABLES.items():
        keys = tuple(_explain_keys(table))
        about = KEYS[group].about
        if group == "servers":
            prefix = "servers.NAME."
            yield Section("[servers.files]", prefix, about, tuple(key for key in keys if key.name not in REMOTE_KEYS))
            remote = "One that is reached over the network, by Streamable HTTP."
            yield Section("[servers.issues]", prefix, remote, tuple(key for key in keys if key.name in REMOTE_KEYS))
        else:
            yield Section(heading, f"{group}.", about, keys)


def _explain_keys(table: type[StrictTable]) -> Iterator[Explained]:
    for name, key in table.model_fields.items():
        default, example = ("", key.examples[0]) if key.examples else (_toml_unless_none(key.default), None)
        yield Explained(name, key.description or "", default, _toml_unless_none(example))


def commented_settings(head: str, given: Mapping[str, Any]) -> str:
    """Return a settings file in which every line is a comment, but for the settings that are given.

    `given`: settings that are in no table.
    """
    blocks = [head]
    for section in list_sections():
        if section.heading:
            blocks.append(f"{_comment(section.about)}\n# {section.heading}")
        for key in section.keys:
            is_given = not section.heading and key.name in given
            line = f"{key.name} = {toml_text(given[key.name])}" if is_given else f"# {key.line}"
            blocks.append(f"{_comment(key.about)}\n{line}")
    return "\n\n".join(blocks) + "\n"


def _comment(text: str) -> str:
    lines = textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join(f"# {line}" for line in lines)


def _toml_unless_none(value: Any) -> str:
    return "" if value in (None, ()) else toml_text(value)
