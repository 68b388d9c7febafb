"""PROVIDER-016: a provider that answers a header and then nothing more; what it may have spent is charged.

No idempotency key goes with an attempt: none of the providers documents one for a completion, their libraries send
none, and a further attempt is another request (less may be reserved for it), which a server that knew such a key would
have to refuse. So a call whose end is unknown is charged with all that it held, and asked anew.
"""

from __future__ import annotations

import json

from starlette.responses import Response, StreamingResponse
from support.app import Place
from support.provider_server import Heard, Standin, breaks_off, talks

from kairos_mcp.core.limits import Limits
from providers.test_runs import openai, run_on

HELD = 4_096  # tokens that one completion may write


async def header_alone(heard: Heard) -> Response:
    """The header and the first bytes of a reply; then the line stays open, and silent."""

    async def first_bytes():
        yield b'{"id": "half", "choices": ['
        await heard.gone.wait()

    return StreamingResponse(first_bytes(), media_type="application/json")


async def test_PROVIDER_016_a_reply_that_never_comes_is_charged_at_its_bound(place: Place, server: Standin) -> None:
    server.will(talks("warm"), header_alone, talks("as far as I came", usage=(100, 20, 0)))
    await run_on(openai(place, server), goal="load what it takes")
    _, run_id, report = await run_on(openai(place, server), goal="wait", limits=Limits(milliseconds=2_500))
    assert (report.status, report.stop_reason, report.summary) == ("stopped", "timeout", "as far as I came")
    assert (len(server.heard), report.usage["output_tokens"]) == (3, HELD + 20)
    assert report.usage["exactness"] == "bounded"
    ((spent,),) = place.rows(
        "select spent from answer join step on step.id = step join run on run.n = run where run.id = ?"
        " and path = 'round-1'",
        run_id,
    )
    assert json.loads(spent)[3] == HELD


async def test_PROVIDER_016_it_is_asked_anew_and_with_no_key_that_says_otherwise(place: Place, server: Standin) -> None:
    server.will(breaks_off, talks("done", usage=(100, 20, 0)))
    place, _, report = await run_on(openai(place, server))
    assert (report.summary, report.usage["output_tokens"], report.usage["exactness"]) == ("done", 20 + HELD, "bounded")
    assert [name for heard in server.heard for name in heard.headers if "idempotency" in name] == []
