"""`approve` and `deny`: a person's word on what a run asks leave for; and the diff that they decide about."""

from __future__ import annotations

from kairos_mcp.app.app import App
from kairos_mcp.cli.exit_codes import COMPLETED
from kairos_mcp.cli.session import person, settings_for, speak, stay, with_host
from kairos_mcp.cli.speech import say, say_diff, say_json
from kairos_mcp.core.errors import BadArguments
from kairos_mcp.models.answers import FEEDBACK_CHARS
from kairos_mcp.settings.settings import Flags
from kairos_mcp.store.approvals import ApprovalRow
from kairos_mcp.store.decisions import Verdict
from kairos_mcp.views.run_report import RunReport


def decide_run(
    flags: Flags,
    run_id: str,
    key: str,
    said: Verdict,
    feedback: str | None = None,
    *,
    digest: str | None,
    principal: str,
    drive: bool,
    as_json: bool,
) -> int:
    """Decide about what waits under the key; unless told otherwise, go on with the run here if no server does."""
    if feedback is not None and len(feedback) > FEEDBACK_CHARS:
        raise BadArguments(f"The feedback is longer than {FEEDBACK_CHARS} characters.", "Say it shorter.")
    settings, who = settings_for(flags, run_id), person(principal)

    async def begin(host: App) -> str:
        found = await host.decide(run_id, key, said, feedback, who, digest=digest)
        if not as_json:
            _say_decided(found, said)
        await host.drive_here(run_id)
        return run_id

    async def deposit(host: App) -> RunReport:
        found = await host.decide(run_id, key, said, feedback, who, digest=digest, drive=False)
        if not as_json:
            _say_decided(found, said)
        return host.report(run_id, who)

    if drive:
        return speak(stay(settings, begin, quiet=as_json, who=who), flags, as_json=as_json)
    report = with_host(settings, deposit)
    if as_json:
        say_json(report.as_json())
    else:
        say(f"stored for whoever goes on with run {run_id}, which is {report.status}")
    return COMPLETED


def _say_decided(row: ApprovalRow, said: Verdict) -> None:
    """What exactly it was, again: the decision is bound to it."""
    say_diff(row.preview)
    say(f"{'approved' if said == 'approve' else 'denied'}: {row.tool} at {row.path}")
