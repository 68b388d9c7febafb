"""Run in a process of its own: Kairos with one field more in its results, `touched`, a list of files.

Prints, as JSON: the field's schema, the structured content and the text of a result, of one that is too long, of a list
of runs, and of what a caller is shown who answered.
"""

import importlib.util
import json
import sys
from pathlib import Path

NAME = "kairos_mcp.views.run_report"
LAST_FIELD = "\n    held_up_by: "
FIELD = (
    '\n    touched: Annotated[list[str], Field(list_of(TEXT), " and ".join,'
    ' (FieldCut(0, leave_out, "{} files left out"),), in_row=True, in_delta=True)] = ()'
)


def add_field() -> None:
    """Load the module of the report with one field more, before anything imports it."""
    found = importlib.util.find_spec(NAME)
    assert found is not None
    assert found.origin is not None
    source = Path(found.origin).read_text()
    assert source.count(LAST_FIELD) == 1
    module = importlib.util.module_from_spec(found)
    sys.modules[NAME] = module
    exec(compile(source.replace(LAST_FIELD, FIELD + LAST_FIELD), found.origin, "exec"), module.__dict__)


def show_results() -> dict[str, object]:
    from kairos_mcp.server import results
    from kairos_mcp.views.run_report import FIELDS, RESULT_SCHEMA, RunReport

    fields = dict.fromkeys(name for name in FIELDS if name not in ("touched", "phase"))
    fields |= {"run_id": "r1", "seq": 7, "flow": "planner", "goal": "Look.", "status": "completed", "rounds": 1}
    fields |= {"usage": {"model_calls": 1}, "remaining": {}, "calls": (), "plan": (), "waiting": (), "degraded": ()}
    item = {"key": "round-2", "kind": "completion", "after": "round-1", "messages": []}

    def told(result: object) -> tuple[object, str]:
        return result.structured_content, result.content[0].text

    return {
        "schema": RESULT_SCHEMA["properties"]["touched"],
        "whole": told(results.run_result(RunReport(**fields, touched=["a", "b"]))),
        "long": told(results.run_result(RunReport(**fields, touched=["x" * 9_000]))),
        "row": told(results.runs_result([RunReport(**fields, touched=["a", "b"])], brief=True)),
        "delta": told(results.run_result(RunReport(**fields | {"waiting": [item]}, touched=["a", "b"]))),
    }


if __name__ == "__main__":
    add_field()
    print(json.dumps(show_results()))
