"""The declaration of an operation: its fields, who may do it, what it does, and on which surfaces it stands.

An operation is a dataclass. Its docstring is the command's help and the button's hint. Made of the declaration are the
page's act (`page/acts.py`), the arguments of the MCP tool run_control (`server/arguments/run_control.py`), a command
(`cli/control.py`) and a button (`page/assets/controls.js`). A surface that is not made of it names where it stands.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import MISSING, fields
from inspect import getdoc
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, get_args, get_type_hints

from pydantic import Field

from kairos_mcp.core.decision_rights import DecisionKind
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.limits_table import LimitsTable
from kairos_mcp.core.outcomes import RunStatus
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.store.inbox import ControlName

if TYPE_CHECKING:
    from kairos_mcp.app.app import App
    from kairos_mcp.core.decision_rights import Caller

RUN_CONTROL = "run_control"

RunId = Annotated[str, Field(min_length=1, max_length=100)]
Id = Annotated[str, Field(min_length=1, max_length=200)]
Folder = Annotated[str, Field(min_length=1, max_length=4_096)]
Text = Annotated[str, Field(max_length=2_000)]
RunLimits = Annotated[Limits, LimitsTable(most_count=10**12, most_amount=10**6)]


class Argument(NamedTuple):
    """What the surfaces say of a field, in its annotation."""

    description: str | None = None
    """Over MCP, after "With `NAME`: ". None: run_control does not take it."""
    listed: str = ""
    """In the listing of tools, after "For NAME: "; it is short, since every host reads it in every session."""
    help: str = ""
    """In the help of the command."""
    label: str = ""
    """In the form of the page."""


class Absent(NamedTuple):
    """Why an operation does not stand on a surface."""

    why: str


class Command(NamedTuple):
    """How a command that is made of an operation ends."""

    follows: bool = False
    """It goes on with the run and shows it until it rests, with the exit codes of `run`. Else it shows the run once."""
    until: Literal["attention", "done"] | None = None
    """What it waits for before it shows the run."""
    wait_s: float = 0
    ends_as: RunStatus | None = None
    """It has failed where the run's status is another one."""


class Button(NamedTuple):
    """A button of a run on the page. It opens a dialog if the operation has fields, or a title is given."""

    label: str
    rest: str = ""
    """What a narrow screen leaves out of the label."""
    title: str = ""
    note: str = ""
    """What the dialog says before its fields."""
    shown: Literal["open", "moving", "paused"] = "open"
    """For which runs that have not ended: all, or only those that are not paused, or are."""
    is_dangerous: bool = False


class OperationKind(NamedTuple):
    name: str
    """The page's act, the `action` of run_control, the command that is made of it."""
    tool: str | Absent
    """The MCP tool that offers it."""
    command: str | Command
    """The command: by its words, or made of the declaration."""
    button: str | Button | Absent
    """The button: the script of the page that has it, or made of the declaration."""
    who: DecisionKind | Literal["owner"] = "owner"
    """Who may do it: whoever owns the run, or who may make such a decision (`core/decision_rights.py`)."""
    request: ControlName | None = None
    """The kind of control request by which it reaches the run (`store/inbox.py`)."""
    moves: bool = False
    """Somebody has to go on with the run then."""
    action: str = ""
    """What it does, where run_control lists it, after its name."""
    subject: str = "run"
    """What it is done to, in the description of run_control."""
    shows_items: bool = True
    """The result of run_control shows what waits in full: whoever does it may answer next."""


@dataclass(frozen=True, slots=True)
class OperationResult:
    """What an operation came to, in a sentence for the person; `run_id`: of the run that it started."""

    said: str
    run_id: str | None = None


class Operation(ABC):
    """What somebody does by hand: a dataclass whose fields are what it is given, with a record of its kind."""

    kind: ClassVar[OperationKind]

    @abstractmethod
    async def do(self, app: App, caller: Caller) -> OperationResult:
        """Carry the operation out. Raises what the App raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOperation(Operation):
    """An operation on a run."""

    run: RunId

    @abstractmethod
    async def do(self, app: App, caller: Caller, *, drive: bool = True) -> OperationResult:
        """Carry the operation out. `drive=False`: the run is left to whoever goes on with it."""


class OperationField(NamedTuple):
    """A field of an operation. `hint`: its whole annotation. `type`: without what is said of it."""

    name: str
    hint: Any
    type: Any
    argument: Argument
    is_required: bool
    default: Any


def fields_of(form: type[Operation]) -> Iterator[OperationField]:
    """Yield the fields of an operation, but for the run that it is done to."""
    hints = get_type_hints(form, include_extras=True)
    for field in fields(form):  # type: ignore[arg-type]  # every operation is a dataclass
        if field.name == "run":
            continue
        hint = hints[field.name]
        stated = getattr(hint, "__metadata__", ())
        argument = next((each for each in stated if isinstance(each, Argument)), Argument())
        is_required = field.default is MISSING
        kind = get_args(hint)[0] if stated else hint
        yield OperationField(field.name, hint, kind, argument, is_required, None if is_required else field.default)


def describe(form: type[Operation]) -> str:
    """Return what an operation does, in a sentence."""
    return getdoc(form) or ""
