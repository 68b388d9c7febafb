"""The arguments of run_control, made of the operations that it offers: `action`, and the fields of each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

from pydantic import Field, create_model, model_validator
from pydantic_core import PydanticCustomError

from kairos_mcp.app.operations.control import CONTROL_OPERATIONS
from kairos_mcp.app.operations.operation import RUN_CONTROL, OperationField, RunOperation, fields_of
from kairos_mcp.app.operations.responses import Settle
from kairos_mcp.core.limits import UNLIMITED
from kairos_mcp.server.arguments.base import Arguments, RunId, in_listing

_OFFERED: tuple[type[RunOperation], ...] = (*CONTROL_OPERATIONS, Settle)
FORMS = {form.kind.name: form for form in _OFFERED if form.kind.tool == RUN_CONTROL}
TAKEN = {
    name: {field.name: field for field in fields_of(form) if field.argument.description is not None}
    for name, form in FORMS.items()
}
"""The arguments that each action takes."""


class RunControl(Arguments):
    run_id: RunId = Field(description="The id of the run.", json_schema_extra=in_listing(""))
    action: str

    @model_validator(mode="after")
    def _check_action(self) -> Self:
        for name in dict.fromkeys(name for taken in TAKEN.values() for name in taken):
            is_given = getattr(self, name) not in (None, UNLIMITED)
            field = TAKEN[self.action].get(name)
            if is_given if field is None else field.is_required and not is_given:
                takers = " and ".join(action for action, taken in TAKEN.items() if name in taken)
                raise PydanticCustomError("needs", f"`{name}` is for {takers}, which needs it")
        return self

    def operation(self) -> RunOperation:
        """Return the operation that is asked for."""
        given = {name: getattr(self, name) for name in TAKEN[self.action]}
        return FORMS[self.action](
            run=self.run_id, **{name: value for name, value in given.items() if value is not None}
        )


def _make_class() -> type[RunControl]:
    actions = "; ".join(f"`{name}` {form.kind.action}" for name, form in FORMS.items())
    action = Field(description=f"{actions}.", json_schema_extra=in_listing(""))
    made: dict[str, Any] = {"action": (Literal[tuple(FORMS)], action)}
    for name, taken in TAKEN.items():
        made |= {field.name: (field.hint | None, _describe(name, field)) for field in taken.values()}
    return create_model("RunControl", __base__=RunControl, **made)


def _describe(action: str, field: OperationField) -> Any:
    listed = f"For {action}: {field.argument.listed}" if field.argument.listed else f"For {action}"
    return Field(
        None, description=f"With `{action}`: {field.argument.description}", json_schema_extra=in_listing(listed)
    )


def summarize_actions() -> str:
    """Return what run_control does, in a sentence: its actions by what they are done to."""
    subjects = dict.fromkeys(form.kind.subject for form in FORMS.values())
    parts = (
        f"{_join([name for name, form in FORMS.items() if form.kind.subject == subject])} a {subject}"
        for subject in subjects
    )
    return f"{'; '.join(parts).capitalize()}."


def _join(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


RUN_CONTROL_ARGUMENTS = _make_class()
