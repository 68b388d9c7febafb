"""The parts of the reference that are made from the code of the command line: its commands, and what doctor says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from kairos_mcp.cli.command_table import EXAMPLES, GROUP_EXAMPLES, SECTIONS, Examples, build_app

CLI = Path(__file__).resolve().parents[2] / "kairos_mcp" / "cli"
COMMANDS_INTRODUCTION = """# Commands

Made by `python tests/docs/readme.py` from the commands themselves; do not edit. `kairos` is the same program as
`kairos-mcp`.

Each command takes `-h`. Most take `--home DIR` (the state folder), `--workspace DIR`, `--config FILE` and `--json` (one
JSON document on stdout); they are left out below. A run is named by its id, a unique beginning of its id, or `last`.

| exit code | means |
|---|---|
| 0 | done; of a run: completed |
| 1 | failed, or what was named was not found |
| 2 | wrong use |
| 3 | it waits for a person, or for an answer |
| 4 | a run was stopped by a limit or a guard |
| 130 | cancelled |
"""
_COMMON = {"home", "workspace", "config", "json", "as_json", "principal"}


def commands_page() -> str:
    """The page `docs/commands.md`: each command with its options and examples, in the sections of the help."""
    program: Any = typer.main.get_command(build_app())
    parts = [COMMANDS_INTRODUCTION]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}\n")
        for name in names:
            command = program.commands[name]
            if hasattr(command, "commands"):
                parts.append("\n".join([f"### {name}", _in_line(command.help), "", *_examples(GROUP_EXAMPLES[name])]))
                parts += [_command(f"{name} {inner}", found, 4) for inner, found in command.commands.items()]
            else:
                parts.append(_command(name, command, 3))
    return "\n".join(parts)


def _command(name: str, command: Any, depth: int) -> str:
    context = command.context_class(command, info_name=name)
    records = [option.get_help_record(context) for option in command.params if option.name not in _COMMON]
    rows = [f"| `{_cell_text(words)}` | {_cell_text(about)} |" for words, about in filter(None, records)]
    lines = [f"{'#' * depth} {name}", _in_line(command.help), ""]
    if rows:
        lines += ["| | |", "|---|---|", *rows, ""]
    return "\n".join([*lines, *_examples(EXAMPLES.get(name, ()))])


def _examples(examples: Examples) -> list[str]:
    shown = [f"kairos-mcp {words:<42} # {why}" for words, why in examples]
    return ["```sh", *shown, "```", ""] if shown else []


def _cell_text(text: str) -> str:
    return _in_line(text).replace("|", "\\|")


def _in_line(text: str) -> str:
    return " ".join(text.replace("\b", "").split())


def cures_table() -> str:
    """What doctor says and what to do then, from the findings in its modules; … stands for what differs."""
    rows = dict.fromkeys(_findings())
    return "\n".join(["| about | doctor says | what to do |", "|---|---|---|", *rows])


def _findings() -> Iterator[str]:
    for file in sorted(CLI.glob("doctor*.py")):
        for function in (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)):
            for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
                texts = _texts_before(function, call.lineno)
                match texts.get(name) if isinstance(call.func, ast.Name) and (name := call.func.id) else None:
                    case ast.Call(func=ast.Name(id="partial"), args=[ast.Name(id="Finding"), about]):
                        arguments = [about, *call.args]
                    case _:
                        arguments = call.args if getattr(call.func, "id", "") == "Finding" else []
                cells = [_cell(argument, texts) for argument in arguments]
                if len(cells) == 4 and cells[1] != "ok" and all(re.search(r"[a-z]{3}", cells[at]) for at in (0, 2, 3)):
                    yield f"| {cells[0]} | {cells[2]} | {cells[3]} |"


def _texts_before(function: ast.FunctionDef, line: int) -> dict[str, ast.expr]:
    """Return what is assigned to each name of a function last before a line."""
    assigned = sorted(
        (node for node in ast.walk(function) if isinstance(node, ast.Assign) and node.lineno <= line),
        key=lambda node: node.lineno,
    )
    return {target.id: node.value for node in assigned for target in node.targets if isinstance(target, ast.Name)}


def _cell(node: ast.expr, texts: dict[str, ast.expr]) -> str:
    """Return a text with … for what is only known when doctor runs."""
    match node:
        case ast.Constant(value=str(text)):
            return text.replace("|", "\\|")
        case ast.JoinedStr(values=parts):
            return "".join(_cell(part, {}) if isinstance(part, ast.Constant) else _hole(part, texts) for part in parts)
        case ast.Name(id=name) if name in texts:
            return _cell(texts[name], {})
        case _:
            return "…"


def _hole(node: ast.expr, texts: dict[str, ast.expr]) -> str:
    match node:
        case ast.FormattedValue(value=ast.Name(id=name)) if isinstance(texts.get(name), ast.JoinedStr | ast.Constant):
            return _cell(texts[name], {})
        case _:
            return "…"
