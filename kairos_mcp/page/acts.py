"""What a person does on the page: each act is an operation, whose fields are checked, then carried out.

What is decided is stored for whoever goes on with the run, as a command stores it; the page's process goes on with it
only where no server does.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, create_model
from pydantic_core import ValidationError

from kairos_mcp.app.operations.operation import Operation, OperationResult, RunId, RunOperation, fields_of
from kairos_mcp.app.operations.register import OPERATIONS
from kairos_mcp.core.decision_rights import person_on_page
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.core.input_checks import first_problem
from kairos_mcp.core.messages import JsonObject

if TYPE_CHECKING:
    from kairos_mcp.app.app import App


class Act(BaseModel):
    """The fields of an act, as the page sends them beside its name."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)


@cache
def act_class(name: str) -> type[Act]:
    """Return the class of an operation's act, made of its fields."""
    form = OPERATIONS[name]
    run = {"run": (RunId, ...)} if issubclass(form, RunOperation) else {}
    rest = {field.name: (field.hint, ... if field.is_required else field.default) for field in fields_of(form)}
    made: type[Act] = create_model(form.__name__, __base__=Act, **run, **rest)  # type: ignore[call-overload]  # its fields are made at run time
    return made


def parse_act(value: JsonObject) -> Operation:
    """Return the operation that an object describes. Raises BadArguments, which quotes nothing of it."""
    name = value.get("act")
    if not isinstance(name, str) or name not in OPERATIONS:
        raise BadArguments("The page asked for an act that there is not.", "Load the page again.")
    try:
        given = act_class(name).model_validate({key: field for key, field in value.items() if key != "act"})
    except ValidationError as error:
        problem = first_problem(error)
        raise BadArguments(f"{problem.place or 'The act'}: {problem.message}.", "Load the page again.") from None
    return OPERATIONS[name](**dict(given))


async def carry_out(operation: Operation, app: App) -> OperationResult:
    """Carry out an act, one on a run in the name of whose run it is, and say who goes on with the run. Raises what the
    operation raises."""
    if isinstance(operation, RunOperation):
        done = await operation.do(app, await app.overview.find_caller(operation.run), drive=False)
        done = replace(done, run_id=done.run_id or operation.run)
    else:
        done = await operation.do(app, person_on_page())
    if done.run_id is None or not operation.kind.moves:
        return done
    return replace(done, said=f"{done.said} {await app.control.describe_driver(done.run_id)}")
