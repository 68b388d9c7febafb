"""What a field of a result is beside its value stands at the field, and nowhere else."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import added_field

import kairos_mcp
from kairos_mcp.server.result_schema import SCHEMAS
from kairos_mcp.views.run_report import FIELDS, RESULT_SCHEMA

PACKAGE = Path(kairos_mcp.__file__).parent


def test_one_line_adds_a_field_to_schema_text_cuts_rows_and_deltas() -> None:
    command = [sys.executable, added_field.__file__]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["schema"] == {"type": "array", "items": {"type": "string"}}
    body, text = found["whole"]
    assert (body["touched"], "\ntouched: a and b" in text) == (["a", "b"], True)
    body, _ = found["long"]
    assert (body["touched"], body["degraded"]) == ([], ["1 files left out"])
    assert found["row"][0]["runs"][0]["touched"] == ["a", "b"]
    body, text = found["delta"]
    assert (body["touched"], "\ntouched: a and b" in text) == (["a", "b"], True)


def test_every_field_of_a_result_is_in_the_schema_that_is_published() -> None:
    assert SCHEMAS["result"][1] is RESULT_SCHEMA
    assert list(RESULT_SCHEMA["properties"]) == list(FIELDS)


@pytest.mark.parametrize("module", ["server/results.py", "server/truncation.py", "server/result_schema.py"])
def test_no_list_of_fields_stands_beside_the_report(module: str) -> None:
    lists = [
        [element.value for element in node.elts if isinstance(element, ast.Constant) and element.value in FIELDS]
        for node in ast.walk(ast.parse((PACKAGE / module).read_text()))
        if isinstance(node, ast.Tuple | ast.List | ast.Set)
    ]
    assert [names for names in lists if len(names) > 2] == []
