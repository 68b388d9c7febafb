"""Set or remove one entry in the text of a host's file, whatever its format, so that all else in it stays."""

from __future__ import annotations

import io
import re
import tomllib
from collections.abc import Callable
from typing import Any, NamedTuple

from kairos_mcp.core import jsonc
from kairos_mcp.core.messages import JsonObject


class HostFormat(NamedTuple):
    """A format of hosts' files. All three raise ValueError for a text that is not of this format.

    `parse`: the text's values. `set_entry(text, section, name, entry)`: the text with this entry in the table
    `section`. `remove_entry(text, section, name)`: the text without an entry that is in it,
    and without the section where nothing is left in it.
    """

    parse: Callable[[str], JsonObject]
    set_entry: Callable[[str, str, str, JsonObject], str]
    remove_entry: Callable[[str, str, str], str]


def _set_in_toml(text: str, section: str, name: str, entry: JsonObject) -> str:
    import tomlkit

    document = tomlkit.parse(text)
    if section not in document:
        document.add(section, tomlkit.table(is_super_table=True))
    table = tomlkit.table()
    table.update(entry)
    document[section][name] = table
    return tomlkit.dumps(document)


def _remove_in_toml(text: str, section: str, name: str) -> str:
    import tomlkit

    document = tomlkit.parse(text)
    del document[section][name]
    return re.sub(r"\n\r?\n\Z", "\n", tomlkit.dumps(document))  # the blank line that stood before it goes with it


def _edit_yaml(text: str, edit: Callable[[Any], None]) -> str:
    from ruamel.yaml import YAML

    yaml, written = YAML(), io.StringIO()
    yaml.preserve_quotes, yaml.width = True, 10_000
    document = yaml.load(text)
    document = {} if document is None else document
    edit(document)
    yaml.dump(document, written)
    return written.getvalue()


def _parse_yaml(text: str) -> JsonObject:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        content = YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        raise ValueError("it is not YAML") from error
    if content is not None and not isinstance(content, dict):
        raise ValueError("it is not a YAML mapping")
    return content or {}


def _set_in_yaml(text: str, section: str, name: str, entry: JsonObject) -> str:
    def edit(document: Any) -> None:
        if document.get(section) is None:
            document[section] = {}
        document[section][name] = entry

    return _edit_yaml(text, edit)


def _remove_in_yaml(text: str, section: str, name: str) -> str:
    def edit(document: Any) -> None:
        del document[section][name]
        if not document[section]:
            del document[section]

    return _edit_yaml(text, edit)


JSON = HostFormat(jsonc.parse, jsonc.set_entry, jsonc.remove_entry)
TOML = HostFormat(tomllib.loads, _set_in_toml, _remove_in_toml)
YAML = HostFormat(_parse_yaml, _set_in_yaml, _remove_in_yaml)
