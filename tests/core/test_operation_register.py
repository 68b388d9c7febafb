"""The register of operations: each stands on all surfaces, or says where else or why not; and has what it needs."""

from __future__ import annotations

import ast
import inspect
import json
import re
from dataclasses import fields
from typing import Annotated, get_args

import pytest
import typer
from support.sources import PACKAGE, nodes_with

from kairos_mcp.app.app import App
from kairos_mcp.app.operations.control import CONTROL_OPERATIONS
from kairos_mcp.app.operations.operation import (
    RUN_CONTROL,
    Absent,
    Argument,
    Button,
    Command,
    Operation,
    OperationKind,
    OperationResult,
    RunOperation,
    describe,
    fields_of,
)
from kairos_mcp.app.operations.register import OPERATIONS
from kairos_mcp.cli import command_table
from kairos_mcp.cli.control import make_command
from kairos_mcp.core.decision_rights import RIGHTS, Caller
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.page.acts import act_class, parse_act
from kairos_mcp.store.inbox import CONTROL, ControlName

TESTS = PACKAGE.parent / "tests"
LISTING = {tool["name"]: tool for tool in json.loads((PACKAGE / "server" / "listing.json").read_bytes())["tools"]}
NO_REQUEST = {  # operations on a run that leave nothing in its inbox
    "answer": "an answer counts at once",
    "fork": "it starts another run",
}
LISTED_IN = {"store/inbox.py", "cli/command_table.py"}  # the kinds of control requests; every command

every_operation = pytest.mark.parametrize("form", OPERATIONS.values(), ids=OPERATIONS)


@every_operation
def test_an_operation_says_what_it_does_in_a_sentence(form: type[Operation]) -> None:
    assert re.fullmatch(r"[A-Z][^\n]+\.", describe(form))
    assert "kind" in vars(form)  # its own, and not its base's
    assert [each for each in OPERATIONS.values() if each.kind.name == form.kind.name] == [form]


@every_operation
def test_an_operation_is_an_act_of_the_page_and_tried_there(form: type[Operation]) -> None:
    tried = "".join((TESTS / file).read_text() for file in ("page/test_acts.py", "approvals/test_rights.py"))
    assert f'"{form.kind.name}"' in tried
    assert set(act_class(form.kind.name).model_fields) == {field.name for field in fields(form)}  # type: ignore[arg-type]  # a dataclass
    with pytest.raises(BadArguments):
        parse_act({"act": form.kind.name, "unknown": 1})


@every_operation
def test_an_operation_is_offered_by_a_tool_or_says_why_by_none(form: type[Operation]) -> None:
    tool = form.kind.tool
    if isinstance(tool, Absent):
        assert tool.why
        return
    assert tool in LISTING
    actions = LISTING[RUN_CONTROL]["inputSchema"]["properties"]["action"]["enum"]
    assert (form.kind.name in actions) == (tool == RUN_CONTROL)
    if tool == RUN_CONTROL:
        assert form.kind.action
        assert all(field.argument.description or not field.is_required for field in fields_of(form))


@every_operation
def test_an_operation_has_a_command(form: type[Operation]) -> None:
    command = form.kind.command
    if isinstance(command, Command):
        assert form.kind.name in command_table.COMMANDS
        assert all(field.argument.help for field in fields_of(form))
    else:
        *group, name = command.split()
        assert name in (command_table.GROUPS[group[0]][1] if group else command_table.COMMANDS)


@every_operation
def test_an_operation_has_a_button_or_says_why_none(form: type[Operation]) -> None:
    button = form.kind.button
    if isinstance(button, Button):
        assert form in CONTROL_OPERATIONS
        assert f'"name": "{form.kind.name}"' in (PACKAGE / "page" / "assets" / "controls.js").read_text()
    elif isinstance(button, Absent):
        assert button.why
    else:
        assert re.search(rf'"{form.kind.name}"', (PACKAGE / "page" / "assets" / button).read_text())


@every_operation
def test_who_may_do_it_is_stated_and_a_tool_offers_a_decision_only_where_an_argument_may_make_it(
    form: type[Operation],
) -> None:
    if form.kind.who == "owner":
        return
    ways = RIGHTS[form.kind.who]
    assert {"command", "page"} <= ways.keys()
    assert ("argument" in ways) == (not isinstance(form.kind.tool, Absent))


@every_operation
def test_an_operation_on_a_run_reaches_its_owner_by_a_control_request(form: type[Operation]) -> None:
    assert (form.kind.request is not None) == (issubclass(form, RunOperation) and form.kind.name not in NO_REQUEST)
    assert form.kind.request is None or form.kind.request in CONTROL


def test_every_control_request_is_sent_by_an_operation() -> None:
    assert set(CONTROL) == set(get_args(ControlName)) == {form.kind.request for form in OPERATIONS.values()} - {None}


def _lists_operations(node: ast.AST) -> bool:
    """Whether it names several of the operations that steer a run, as elements or keys."""
    match node:
        case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements) | ast.Dict(keys=elements):
            names = {each.value for each in elements if isinstance(each, ast.Constant)}
            return len(names & {form.kind.name for form in CONTROL_OPERATIONS}) > 1
        case _:
            return False


def test_no_list_of_operations_stands_elsewhere() -> None:
    names = [form.kind.name for form in CONTROL_OPERATIONS]
    assert {file for file, node in nodes_with(names) if _lists_operations(node)} == LISTED_IN


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag(RunOperation):
    """Tag a run."""

    kind = OperationKind("tag", tool=RUN_CONTROL, command=Command(), button=Button("Tag"), request="resume")

    word: Annotated[str, Argument(help="The tag.")]
    colour: Annotated[str | None, Argument(help="Its colour.")] = None

    async def do(self, app: App, caller: Caller, *, drive: bool = True) -> OperationResult:
        await app.control.request(self.run, "resume", caller, drive=drive)
        return OperationResult(f"Tagged {self.word} {self.colour}.")


def test_what_an_operation_requires_is_an_argument_of_its_command_and_the_rest_are_options() -> None:
    made = inspect.signature(make_command(Tag, Command())).parameters
    shapes = {name: type(get_args(made[name].annotation)[1]) for name in ("run", "word", "colour")}
    assert list(made) == ["run", "word", "colour", "principal", "as_json", "flags"]
    assert shapes == {
        "run": typer.models.ArgumentInfo,
        "word": typer.models.ArgumentInfo,
        "colour": typer.models.OptionInfo,
    }
