"""The LLMJSON cases of fault_cases.json in the phases they name: a bad answer is repaired by a model or is an error,
and never becomes an act, a noop or a low risk. What the decoder itself does with them is in test_decoding.py."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.cycle_inputs import EDIT, NOOP, ORIENTED, gives, order, run_flow, simulation_of

from kairos_mcp.core.messages import Completion
from kairos_mcp.flows.ooda.cycles import mandate_flow
from kairos_mcp.flows.ooda.phases import phase_flow

WITH_FILE = ORIENTED | {"files": [{"path": "t.py"}]}
A1 = {"action": "code_edit", "target": "t.py", "old_string": "a=1", "new_string": "a=2", "intent": "i"}
FENCED = A1 | {"new_string": "```py\nprint(1)\n```"}

GOOD: dict[str, tuple[str, str]] = {
    "LLMJSON-002": ('Sure! Here it is:\n{"action":"noop","reason":"x"}\nHope this helps.', "noop"),
    "LLMJSON-003": (json.dumps(FENCED), "code_edit"),
    "LLMJSON-030": ('{"action":"noop","reason":"a\\u0000b"}', "noop"),
    "LLMJSON-035": ('\ufeff\u200b{"action":"noop","reason":"x"}', "noop"),
}
BAD: dict[str, str] = {
    "LLMJSON-004": '{"action":"noop","reason":"x",}',
    "LLMJSON-006": '{"action":"code_edit","target":"t.py","old_string":"a=1","new_string":"a=',
    "LLMJSON-008": '{"action":"noop"} {"action":"code_edit","target":"t.py","old_string":"a","new_string":"b"}',
    "LLMJSON-009": '{"action":"noop","action":"code_edit","target":"t.py","old_string":"a","new_string":"b"}',
    "LLMJSON-010": '{"action":"delete_repo","target":"/"}',
    "LLMJSON-012": '[{"action":"noop"}]',
    "LLMJSON-013": '"noop"',
    "LLMJSON-015": "",
    "LLMJSON-025": "[" * 100_000 + "]" * 100_000,
    "LLMJSON-027": '{"action":"noop","reason":"' + "x" * 20_000_000 + '"}',
    "LLMJSON-028": '{"n":' + "9" * 5_000 + "}",
    "LLMJSON-029": '{"action":"noop","reason":"\\ud800"}',
    "LLMJSON-033": "not json",
    "LLMJSON-037": '{"action":"noop" /* , "action":"code_edit" */}',
}


def decide(*answers: Completion) -> Any:
    of = order()
    names = ("decide", "decide/repair-1", "decide/repair-2")
    place = simulation_of(of, texts={"t.py": "a=1\nb=2\n"}, answers=dict(zip(names, answers, strict=False)))
    place.phases = {"decide": "still not json"}
    return run_flow(phase_flow(of, "decide", WITH_FILE), place)


@pytest.mark.parametrize("case", GOOD)
def test_a_good_answer_is_taken_at_once_and_literally(case: str) -> None:
    text, action = GOOD[case]
    fed = decide(gives(text))
    assert fed.outcome.output["action"] == action
    assert len(fed.requests) == 1
    if case == "LLMJSON-003":
        assert fed.outcome.output["new_string"] == FENCED["new_string"]


@pytest.mark.parametrize("case", BAD)
def test_a_bad_answer_is_asked_for_again_twice_and_then_is_a_parse_error(case: str) -> None:
    fed = decide(gives(BAD[case]))
    assert [request.purpose for request in fed.requests] == ["phase", "repair", "repair"]
    assert fed.outcome.output["status"] == "parse_error"
    assert fed.outcome.status == "failed"
    assert len(fed.outcome.output["reason"]) < 500


@pytest.mark.parametrize("case", BAD)
def test_a_bad_answer_acts_on_nothing(case: str) -> None:
    of = order()
    answers = {f"cycle-{n}/decide": gives(BAD[case]) for n in (1, 2)}
    fed = run_flow(mandate_flow(of, 2), simulation_of(of, answers=answers, phases={"decide": "?"}))
    assert not any("/act/" in path or "/reflect" in path for path in fed.paths)
    assert fed.outcome.stop_reason == "error_threshold"


def test_valid_json_that_was_cut_off_is_refused() -> None:
    """LLMJSON-007."""
    fed = decide(Completion(json.dumps(A1), finish="length"), gives(NOOP))
    assert fed.outcome.output["action"] == "noop"
    assert len(fed.requests) == 2


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("LLMJSON-021", '{"assessment":"success","lessons":[],"confidence":NaN}'),
        ("LLMJSON-023", '{"assessment":"success","lessons":[],"confidence":-0.1}'),
    ],
)
def test_a_confidence_that_is_none_is_a_parse_error(case: str, text: str) -> None:
    of = order()
    fed = run_flow(mandate_flow(of, 1), simulation_of(of, phases={"decide": EDIT, "reflect": text}))
    assert fed.outcome.output["cycles"][0]["broken"]["phase"] == "reflect", case
    assert (fed.outcome.stop_reason, fed.outcome.status) == ("parse_error", "failed")


def test_garbage_instead_of_an_orientation_is_no_low_risk() -> None:
    """LLMJSON-034."""
    of = order()
    fed = run_flow(mandate_flow(of, 1), simulation_of(of, phases={"orient": "garbage"}))
    assert "low" not in json.dumps(fed.outcome.output["cycles"])
    assert not any("/decide" in path for path in fed.paths)
