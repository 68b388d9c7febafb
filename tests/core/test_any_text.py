"""Whatever characters a text holds, NUL too, each store keeps it: the run goes on, and every view of it can be read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, get_args

import pytest
from support.app import ASK, ME, Place, finish_run, open_checked_app, reads, says, start_run
from support.postgres import both_stores

from kairos_mcp.app.app import App
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.outcomes import Outcome
from kairos_mcp.store import rows
from kairos_mcp.store.rows import LISTED_ID
from kairos_mcp.views.trace import TraceQuery, View

MARK = "\ufdd0"  # what stands for NUL in a database begins with it
NUL = f"a\0b{MARK}0{MARK}1{MARK}\0{MARK}"
TEXTS = (NUL, "\0", MARK, f"{MARK}0", "\0" * 3, '{"a": "\\u0000 \\\\u0000 \\\\\\u0000"}', "\u2028\U0010ffff\x7f")


def strings_of(value: Any) -> Iterator[str]:
    """Every text in a value, at any depth."""
    match value:
        case str():
            yield value
        case dict():
            for name, part in value.items():
                yield name
                yield from strings_of(part)
        case list() | tuple():
            for part in value:
                yield from strings_of(part)
        case _:
            return


@both_stores
async def test_a_run_whose_texts_hold_nul_ends_and_can_be_read(place: Place) -> None:
    (place.workspace / "nul.txt").write_text(NUL)
    turn = {"content": NUL, "tool_calls": [{"name": "ask_person", "arguments": {"question": NUL, "a\0b": [NUL]}}]}
    settings = place.settings(reads("nul.txt"), turn, says(NUL), day=Limits(model_calls=100))
    async with open_checked_app(settings) as app:
        run_id = await start_run(app, f"look {NUL}", key=NUL, caller_tools=(ASK,), route="scripted")
        assert await start_run(app, f"look {NUL}", key=NUL, caller_tools=(ASK,), route="scripted") == run_id
        report = await finish_run(app, run_id, NUL)
        assert (report.status, report.summary) == ("completed", NUL), report
        for scope in (None, run_id):
            await app.records.read_spending(scope, ME)
        assert await app.records.read_days(ME)
        for view in get_args(View):
            assert await app.records.trace(run_id, TraceQuery(view=view), ME)
        lines = [json.loads(line) for line in b"".join(await app.records.export(run_id, ME)).splitlines()]
    kept = [text for line in lines for text in strings_of(line)]
    assert sum(NUL in text for text in kept) >= 4  # goal, question, answer, summary
    assert place.store().find_damage(Outcome) == []


@pytest.mark.unreplayed
@both_stores
async def test_what_is_stored_is_what_is_read(place: Place) -> None:
    async with App.open(place.settings(says("done")), via="mcp") as app:
        await start_run(app)
    with place.session() as session:
        for text in TEXTS:
            content_hash = sha256(text.encode()).hexdigest()
            session.rows("delete from text")
            rows.keep_texts(session, [(content_hash, text)])
            assert rows.read_text(session, content_hash) == text  # from its bytes
            assert session.rows("select body from text where body = ?", (text,)) == [(text,)]
            assert list(session.stream("select body from text")) == [(text,)]
            body = json.dumps({"text": text, "list": [text], text: 1, "ids": [1, 2]}, ensure_ascii=False)
            session.rows("update text set body = ?", (body,))
            assert session.row("select json_extract(body, '$.text'), json_type(body, '$.list') from text") == (
                text,
                "array",
            )
            each = "select key, value from text, json_each(body) where type in ('text', 'integer') order by type desc"
            assert [tuple(map(str, row)) for row in session.rows(each)] == [("text", text), (text, "1")]


@pytest.mark.unreplayed
@both_stores
@pytest.mark.parametrize("number", ["9223372036854775808", "-1e400", "1.5", '"1"', "null"])
async def test_a_number_that_fits_into_no_column_fails_no_statement(place: Place, number: str) -> None:
    async with App.open(place.settings(says("done")), via="mcp") as app:
        await start_run(app)
    with place.session() as session:
        session.rows("delete from text")
        for n, body in enumerate((f"[{number}, 7]", "[7]")):
            session.rows("insert into text(hash, body) values (?, ?)", (str(n), body))
        listed = f"select count(*) from text, json_each(body) as item where {LISTED_ID} = 7"
        assert session.row(listed) == (2,)
        assert session.row("select sum(body ->> 1) from text") == (7,)
        session.rows("select body ->> 0 from text")
