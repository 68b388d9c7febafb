"""The skills for a host's model: in the open format, and true."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from skills_ref import read_properties, validate

from kairos_mcp.core.mandate import ACTIONS, MANDATE_SCHEMA, MandateStatus, parse_mandate
from kairos_mcp.flows.ooda.act import ActStatus
from kairos_mcp.flows.ooda.phase_kinds import PHASES
from kairos_mcp.flows.structured_answer import FailureStatus
from kairos_mcp.server.mcp_server import LISTING

SKILLS = Path(__file__).parents[3] / "skills"
NAMES = ["mandates", "ooda-cycle", "planner-loop"]


def text(name: str) -> str:
    return (SKILLS / name / "SKILL.md").read_text(encoding="utf-8")


def test_there_are_three() -> None:
    assert sorted(folder.name for folder in SKILLS.iterdir()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_skill_is_in_the_open_format_and_short(name: str) -> None:
    assert validate(SKILLS / name) == []
    assert read_properties(SKILLS / name).name == name
    assert len(text(name)) < 5_500


def test_the_example_is_a_mandate_and_every_key_is_explained() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", text("mandates"), re.DOTALL)
    assert parse_mandate(json.loads(example)).id == "docs-links"
    for key in MANDATE_SCHEMA["properties"]:
        assert f"`{key}`" in text("mandates") or f'"{key}"' in example


def test_the_views_of_a_run_are_those_that_run_trace_takes() -> None:
    listing = json.loads(LISTING.read_text(encoding="utf-8"))
    (schema,) = [tool["inputSchema"] for tool in listing["tools"] if tool["name"] == "run_trace"]
    (sentence,) = re.findall(r"`run_trace` shows what happened: `view` is ([^;]*);", text("planner-loop"))
    assert set(re.findall(r"`(\w+)`", sentence)) == set(schema["properties"]["view"]["enum"])


def words(kind: object) -> set[str]:
    return set(kind.__args__)  # type: ignore[attr-defined]  # of a Literal


def test_the_words_are_those_of_the_flows() -> None:
    assert {word for word in words(ActStatus) if f"`{word}`" not in text("ooda-cycle")} == set()
    assert {word for word in words(FailureStatus) if f"`{word}`" not in text("ooda-cycle")} == set()
    assert {word for word in ACTIONS if f"`{word}`" not in text("mandates")} == set()
    shown = {word for word in words(MandateStatus) if f"`{word}`" in text("mandates")}
    assert words(MandateStatus) - shown == {"created", "active"}
    for phase in PHASES.values():
        assert phase.input_name is None or f"| `{phase.tool}` | `{phase.input_name}` |" in text("ooda-cycle")
