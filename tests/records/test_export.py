"""A run as a file: everything that its rows say but what is private, verified elsewhere without a store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from support.app import ASK, ME, Place, asks, reads, says, start_run

from kairos_mcp.app.app import App
from kairos_mcp.core.errors import BadArguments, Stale
from kairos_mcp.core.json_bounds import DOCUMENT_VALUES
from kairos_mcp.core.messages import Completion, Private
from kairos_mcp.core.redaction import MASK
from kairos_mcp.history import format as history_format
from kairos_mcp.history.format import FORMAT, ExportedMessage, list_lines, read_lines
from kairos_mcp.history.verify import verify
from kairos_mcp.store.rows import decode_answer, encode_answer
from kairos_mcp.views.trace import TraceQuery

LONG = "line\n" * 6_000


@pytest.fixture
async def lines(place: Place) -> list[dict[str, Any]]:
    """The lines of a run with a long result, a failure, a waiting call and a note."""
    (place.workspace / "long.txt").write_text(LONG)
    async with App.open(place.settings(reads("long.txt", "missing.txt"), asks("why")), via="mcp") as app:
        run_id = await start_run(app, caller_tools=(ASK,))
        return [json.loads(line) for line in await app.records.export(run_id, ME)]


def seal_lines(lines: list[dict[str, Any]]) -> list[bytes]:
    """The lines as a file whose end fits them, whatever was done to them."""
    body = [json.dumps(line).encode() + b"\n" for line in lines if line["line"] != "end"]
    end = {"line": "end", "lines": len(body), "sha256": sha256(b"".join(body)).hexdigest()}
    return [*body, json.dumps(end).encode() + b"\n"]


def of_kind(lines: list[dict[str, Any]], kind: str) -> Iterator[dict[str, Any]]:
    return (line for line in lines if line["line"] == kind)


async def test_a_file_says_what_the_rows_say(place: Place, lines: list[dict[str, Any]]) -> None:
    assert (lines[0]["format"], lines[0]["line"], lines[-1]["line"]) == (FORMAT, "head", "end")
    marks = place.rows("select path, kind, digest, at from step order by id")
    assert [(m["path"], m["kind"], bytes.fromhex(m["digest"]), m["at"]) for m in of_kind(lines, "step")] == marks
    answers = place.rows("select path, answer.at, by_route from answer join step on step.id = answer.step order by id")
    assert [(a["path"], a["at"], a["by"]) for a in of_kind(lines, "answer")] == answers
    bodies = dict(place.rows("select path, body from answer join step on step.id = answer.step"))
    for answer in of_kind(lines, "answer"):
        carried = read_lines(seal_lines(lines)).answers[answer["path"]].answer
        assert carried == decode_answer(bodies[answer["path"]])
    texts = dict(place.rows("select hash, body from text"))
    assert {text["hash"]: text["body"] for text in of_kind(lines, "text")} == texts
    assert LONG in texts.values()
    assert [note["text"] for note in of_kind(lines, "note")] == [n for (n,) in place.rows("select text from note")]


async def test_its_messages_are_those_that_a_trace_tells(place: Place, lines: list[dict[str, Any]]) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        query = TraceQuery(view="messages", max_chars=1_000_000)
        traced = (await app.records.trace(lines[0]["run"], query, ME))["items"]
    exported = [(m["role"], m["content"]) for m in of_kind(lines, "message")]
    # A call that waits has no result yet: a trace shows its state, a file a result of its own.
    waits = [item["tool_call_id"] for item in traced if "state" in item]
    of_rows = [m["path"] for m in of_kind(lines, "step") if m["kind"] == "call"]
    assert [path for path in of_rows if path not in {a["path"] for a in of_kind(lines, "answer")}] == waits
    told = [(item["role"], item.get("content")) for item in traced]
    assert [said for said, item in zip(exported, traced, strict=True) if "state" not in item] == [
        said for said, item in zip(told, traced, strict=True) if "state" not in item
    ]
    assert [m["path"] for m in of_kind(lines, "message")][:4] == [None, None, "round-1", "round-1/call-1"]


async def test_a_file_is_the_same_however_often_it_is_written(place: Place, lines: list[dict[str, Any]]) -> None:
    async with App.open(place.settings(), via="mcp") as app:
        twice = [b"".join(await app.records.export(lines[0]["run"], ME)) for _ in range(2)]
    assert twice[0] == twice[1]
    assert verify(twice[0].splitlines(keepends=True)).identical


async def test_what_only_its_provider_may_be_sent_back_stays(place: Place) -> None:
    async with App.open(place.settings(says("done")), via="mcp") as app:
        run_id = await start_run(app)
        ((body,),) = place.rows("select body from answer")
        private = replace(decode_answer(body), private=Private("a provider", "signature-of-a-thought"))
        place.rows("update answer set body = ?", encode_answer(private))
        whole = b"".join(await app.records.export(run_id, ME))
    assert b"signature-of-a-thought" not in whole
    assert verify(whole.splitlines(keepends=True)).identical


async def test_a_secret_that_became_known_later_is_taken_out_and_named(place: Place) -> None:
    key = "c0ffee-4711-c0ffee"
    (place.workspace / "a.txt").write_text(f"the word is {key}\n")
    async with App.open(place.settings(reads("b.txt"), reads("a.txt"), reads("b.txt"), says("done")), via="mcp") as app:
        run_id = await start_run(app)
        app._context.factory.redactor.learn(key)
        whole = b"".join(await app.records.export(run_id, ME))
    lines = [json.loads(line) for line in whole.splitlines()]
    assert key.encode() not in whole
    assert MASK.encode() in whole
    (masked,) = of_kind(lines, "masked")
    assert masked["paths"] == ["round-2/call-1"]
    report = verify(whole.splitlines(keepends=True))
    assert (report.identical, report.steps, report.by_shape) == (True, 7, 3)
    for line in of_kind(lines, "step"):  # before the secret every digest counts, after it paths and kinds
        changed = [other if other is not line else {**line, "digest": "0" * 64} for other in lines]
        counts = line["path"] in ("round-1", "round-1/call-1", "round-2", "round-2/call-1")
        assert verify(seal_lines(changed)).identical is not counts
        changed = [other if other is not line else {**line, "kind": "compact"} for other in lines]
        assert not verify(seal_lines(changed)).identical


async def test_a_secret_in_the_goal_leaves_paths_and_kinds_to_be_compared(place: Place) -> None:
    key = "c0ffee-4711-c0ffee"
    async with App.open(place.settings(says("done")), via="mcp") as app:
        run_id = await start_run(app, f"say {key} aloud")
        app._context.factory.redactor.learn(key)
        whole = b"".join(await app.records.export(run_id, ME))
    assert key.encode() not in whole
    report = verify(whole.splitlines(keepends=True))
    assert (report.identical, report.by_shape) == (True, 1)


BROKEN: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "empty": lambda _: [],
    "no JSON": lambda file: [b"Dear reader,\n", *file],
    "something else": lambda file: [b'{"a": 1}\n', *file[1:]],
    "without its head": lambda file: file[1:],
    "without its end": lambda file: file[:-1],
    "cut in a line": lambda file: [*file[:4], file[4][:-20]],
    "a line left out": lambda file: [*file[:6], *file[7:]],
    "a line twice": lambda file: [*file[:6], file[5], *file[6:]],
    "a byte changed": lambda file: [*file[:6], file[6].replace(b"a", b"b", 1), *file[7:]],
    "a line after the end": lambda file: [*file, file[1]],
    "deep": lambda _: [b"[" * 100_000 + b"\n"],
    "not text": lambda _: [b"\xff\xfe\x00\n"],
    "two files": lambda file: [*file, *file],
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_damaged_file_is_refused_in_plain_words(lines: list[dict[str, Any]], how: str) -> None:
    with pytest.raises(BadArguments) as refused:
        verify(BROKEN[how](seal_lines(lines)))
    assert refused.value.hint
    assert len(str(refused.value)) < 400


def change_line(lines: list[dict[str, Any]], kind: str, **fields: Any) -> list[bytes]:
    """The file with the first line of a kind changed, and an end that fits."""
    first = next(of_kind(lines, kind))
    return seal_lines([{**line, **fields} if line is first else line for line in lines])


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("text", {"body": "another"}),
        ("text", {"line": "novel"}),
        ("step", {"digest": "none"}),
        ("step", {"path": "round-2"}),
        ("step", {"extra": 1}),
        ("answer", {"path": "round-99"}),
        ("answer", {"answer": {"kind": "guess"}}),
        ("message", {"content": "something else was said"}),
        ("run", {"spec": {"flow": "planner"}}),
        ("run", {"id": "run-another"}),
    ],
)
def test_a_file_that_was_forged_in_a_line_is_refused(
    lines: list[dict[str, Any]], kind: str, fields: dict[str, Any]
) -> None:
    with pytest.raises(BadArguments):
        verify(change_line(lines, kind, **fields))


def test_a_text_that_is_not_the_one_of_its_hash_is_refused_even_where_it_would_do(lines: list[dict[str, Any]]) -> None:
    tools = next(of_kind(lines, "text"))
    with pytest.raises(BadArguments, match="hash"):
        verify(change_line(lines, "text", body=tools["body"].replace("folder", "place")))


def test_a_newer_format_and_another_flow_are_refused_with_the_cure(lines: list[dict[str, Any]]) -> None:
    with pytest.raises(BadArguments, match="newer kairos-mcp"):
        verify(change_line(lines, "head", format=FORMAT + 1, novelty=True))
    for fields in ({"version": 99}, {"flow": "unheard-of"}):
        with pytest.raises(Stale, match="planner_run continues"):
            verify(change_line(lines, "run", **fields))


def test_a_changed_answer_is_found_at_the_next_request(lines: list[dict[str, Any]]) -> None:
    answers = [line for line in of_kind(lines, "answer") if line["path"] == "round-1"]
    answers[0]["answer"]["content"] = "overlook"
    exported = [line for line in lines if line["line"] != "message"]
    with pytest.raises(BadArguments, match="messages"):
        verify(seal_lines(exported))
    for message in of_kind(lines, "message"):
        if message["path"] == "round-1":
            message["content"] = "overlook"
    report = verify(seal_lines(lines))
    assert report.difference is not None
    assert (report.difference.path, report.difference.certain) == ("round-2", False)


def test_the_command_carries_a_run_away_and_verifies_it_without_a_store(
    place: Place, kairos: Callable[..., Any], tmp_path: Path
) -> None:
    place.settings(says("done"))
    assert kairos("run", "Say it.", KAIROS_SCRIPT=str(place.script)).code == 0
    ((run_id,),) = place.rows("select id from run")
    file = tmp_path / "run.jsonl"
    assert kairos("export", run_id, str(file)).code == 0
    assert file.stat().st_mode & 0o777 == 0o600
    exported = file.read_bytes()
    assert kairos("export", run_id).out.encode() == exported
    assert kairos("export", run_id, "-").out.encode() == exported
    assert not any(each.name == "-" for each in tmp_path.rglob("*"))
    file.write_bytes(b"what was there")
    refused = kairos("export", run_id, str(file))
    assert (refused.code, "--force" in refused.err, file.read_bytes()) == (2, True, b"what was there")
    assert kairos("export", run_id, str(file), "--force").code == 0
    assert file.read_bytes() == exported
    elsewhere = tmp_path / "elsewhere"
    said = kairos("replay", str(file), KAIROS_HOME=str(elsewhere))
    assert (said.code, "all identical" in said.out) == (0, True)
    assert not elsewhere.exists()
    assert kairos("replay", "-", typed=file.read_bytes(), KAIROS_HOME=str(elsewhere)).code == 0
    file.write_bytes(file.read_bytes()[:-40])
    said = kairos("replay", str(file))
    assert (said.code, said.out) == (2, "")
    assert kairos("replay", str(tmp_path / "nothing.jsonl")).code == 2
    assert kairos("export", "run-unknown").code == 2
    assert kairos("export", run_id, str(tmp_path / "no" / "folder.jsonl")).code == 1
    assert list(tmp_path.glob(".*")) == []


def test_every_message_names_whose_it_is() -> None:
    assert {"task", "parent", "depth", "role", "content", "tool_calls"} <= set(ExportedMessage.__dataclass_fields__)


def test_a_completion_has_one_field_that_is_private() -> None:
    """A further one has to be left out as well."""
    assert [name for name in Completion.__dataclass_fields__ if name.startswith("priv")] == ["private"]


def test_a_file_without_line_ends_is_read_up_to_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """As /dev/zero is; a line of many values would take far more memory than its bytes."""
    with pytest.raises(BadArguments, match="values"):
        verify([b"[" + b"0," * DOCUMENT_VALUES + b"0]\n"])
    monkeypatch.setattr(history_format, "MAX_LINE_BYTES", 1_000)
    with Path("/dev/zero").open("rb") as endless, pytest.raises(BadArguments, match="longer than 1000 bytes"):
        verify(list_lines(endless))
