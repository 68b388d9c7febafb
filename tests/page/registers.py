"""Make `registers.js` of the page: the registers of routes and units, as a browser needs them."""

from __future__ import annotations

import json

from kairos_mcp.core.limits import UNITS
from kairos_mcp.core.routes import AUTO, ROUTES
from kairos_mcp.page.files import FOLDER

FILE = FOLDER / "registers.js"
_HEAD = "// Routes and units, as core/routes.py and core/limits.py declare them. Made by tests/page/registers.py."


def make_registers() -> str:
    """Return the module: routes by name, those of `auto` first; units in the order of the status line."""
    routes = {AUTO: {"about": "whatever is configured"}}
    routes |= {route.name: {"about": route.about, "answeredBy": route.answered_by} for route in ROUTES.values()}
    units = [
        {"name": unit.name, "label": unit.label or unit.noun, "words": unit.words, "isMain": unit.on_page}
        for unit in sorted(UNITS.values(), key=lambda unit: unit.place)
    ]
    listed = [
        _as_const("ROUTES", "{}", [f"{json.dumps(name)}: {json.dumps(route)}" for name, route in routes.items()]),
        _as_const("UNITS", "[]", [json.dumps(unit) for unit in units]),
    ]
    return "\n".join([_HEAD, "", *listed])


def _as_const(name: str, brackets: str, items: list[str]) -> str:
    lines = "".join(f"  {item},\n" for item in items)
    return f"export const {name} = {brackets[0]}\n{lines}{brackets[1]};\n"


if __name__ == "__main__":
    FILE.write_text(make_registers(), encoding="utf-8")
