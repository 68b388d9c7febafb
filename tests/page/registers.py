"""Make `registers.js`, which page and app need, and `controls.js`, which the page needs: what our registers declare."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from kairos_mcp.app.operations.control import CONTROL_OPERATIONS
from kairos_mcp.app.operations.operation import Button, describe, fields_of
from kairos_mcp.core.limits import UNITS, Limits
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.routes import AUTO, ROUTES, RouteName
from kairos_mcp.flows.ooda.phase_kinds import PHASES
from kairos_mcp.page.files import FOLDER

_REGISTERS_HEAD = "// Units, as core/limits.py declares them. Made by tests/page/registers.py."
_CONTROLS_HEAD = "// Operations, routes and phases, as their registers declare them. Made by tests/page/registers.py."
_INPUTS = {Limits: "limits", RouteName: "route"}  # others are typed


def make_files() -> dict[Path, str]:
    """Return the text of each file."""
    return {FOLDER / "registers.js": _make_registers(), FOLDER / "controls.js": _make_controls()}


def _make_registers() -> str:
    """Return the module of units, as in the status line."""
    units = [
        {"name": unit.name, "label": unit.label or unit.noun, "words": unit.words}
        | ({"isMain": True} if unit.on_page else {})
        for unit in sorted(UNITS.values(), key=lambda unit: unit.order)
    ]
    return "\n".join([_REGISTERS_HEAD, "", _as_const("UNITS", "[]", [json.dumps(unit) for unit in units])])


def _make_controls() -> str:
    """Return the module of the buttons of a run that are made of its operations, dangerous ones last, of routes by name
    (those of `auto` first), and of phases."""
    routes = {AUTO: {"about": "whatever is configured"}}
    routes |= {route.name: {"about": route.about, "answeredBy": route.answered_by} for route in ROUTES.values()}
    listed = [
        _as_const("CONTROLS", "[]", list(map(json.dumps, _list_controls()))),
        _as_const("ROUTES", "{}", [f"{json.dumps(name)}: {json.dumps(route)}" for name, route in routes.items()]),
        f"export const PHASES = {json.dumps([*PHASES])};\n",
    ]
    return "\n".join([_CONTROLS_HEAD, "", *listed])


def _list_controls() -> Iterator[JsonObject]:
    made = [(form, form.kind.button) for form in CONTROL_OPERATIONS if isinstance(form.kind.button, Button)]
    for form, button in sorted(made, key=lambda each: each[1].is_dangerous):
        yield {
            "name": form.kind.name,
            "about": describe(form),
            **{_in_camel_case(name): value for name, value in button._asdict().items() if value},
            "fields": [
                {"name": field.name, "label": field.argument.label, "input": _INPUTS.get(field.type, "text")}
                for field in fields_of(form)
            ],
        }


def _in_camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _as_const(name: str, brackets: str, items: list[str]) -> str:
    lines = "".join(f"  {item},\n" for item in items)
    return f"export const {name} = {brackets[0]}\n{lines}{brackets[1]};\n"


if __name__ == "__main__":
    for file, text in make_files().items():
        file.write_text(text, encoding="utf-8")
