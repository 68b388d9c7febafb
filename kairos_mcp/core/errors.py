"""Every failure that a caller can act on, as one tree; a failure that the model can act on is a ToolResult.

    KairosError
    ├── BadArguments            the call is wrong: unknown, mistyped, out of range
    │   └── SchemaRejected      a JSON Schema that is refused: remote, recursive, too large
    ├── UnknownRun · UnknownTool · UnknownAgent · UnknownMandate
    ├── NotWaiting · AlreadyAnswered · Stale     the call came at the wrong time
    ├── Busy                    another server owns the run
    ├── Denied                  a rule of the gate forbids it
    ├── ApprovalRequired · ApprovalMismatch · ApprovalExpired · ApprovalsFull    a person decides, and has to be asked
    ├── PathDenied · NotFound · NotRegularFile · BinaryFile · TooLarge
    ├── StaleFile · MatchNone · MatchMany · OverlappingEdits · NoChange    an edit that does not fit its file
    ├── ToolNotOffered · Timeout
    ├── CommandDenied           a program that may not be run, or a sandbox that can't be had
    ├── EgressDenied            an address, a scheme or a redirect that may not be reached from here
    │   TlsError · Unreachable  the other end can't be trusted, can't be reached, or broke off
    │   HttpError               it answered, and not with what was asked for
    ├── ProviderError           a model's side failed, or a script ended too soon
    ├── StoreBusy · StoreUnavailable · StoreCorrupt · NoSpace
    │   StoreTooNew             a newer program has written it
    │   Unreadable              a row can't be decoded: its own run stops, and no other
    └── ConfigError             a setting or a file of the user's is wrong

    NotForCallers               signals between parts of the server; they never reach a caller
    ├── FenceLost               this server no longer owns the run: stop, do nothing more
    ├── NotMarked               the store did not take the mark of a call, so the call did not leave
    └── ReplayDiffers           the recorded answers do not belong to this flow: a changed flow, or a damaged row

Each leaf has a code of its own, which callers and models see. `message` says what happened, `hint` what to do next.
"""

from __future__ import annotations

from typing import ClassVar

from kairos_mcp.core.secret_forms import strip_passwords


class KairosError(Exception):
    """A failure with a code, a sentence for what happened and a sentence for what to do next."""

    code: ClassVar[str]
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, hint: str = "", *, run_id: str | None = None) -> None:
        super().__init__(strip_passwords(message))
        self.message = strip_passwords(message)
        self.hint = strip_passwords(hint)
        self.run_id = run_id

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()


class BadArguments(KairosError):
    code = "bad_arguments"


class SchemaRejected(BadArguments):
    code = "schema_rejected"


class UnknownRun(KairosError):
    code = "unknown_run"


class UnknownTool(KairosError):
    code = "unknown_tool"


class UnknownAgent(KairosError):
    code = "unknown_agent"


class UnknownMandate(KairosError):
    code = "unknown_mandate"


class NotWaiting(KairosError):
    code = "not_waiting"


class AlreadyAnswered(KairosError):
    code = "already_answered"


class Stale(KairosError):
    code = "stale"


class Busy(KairosError):
    code = "busy"
    retryable = True


class Denied(KairosError):
    code = "denied"


class ApprovalRequired(KairosError):
    code = "approval_required"


class ApprovalMismatch(KairosError):
    code = "approval_mismatch"


class ApprovalExpired(KairosError):
    code = "approval_expired"


class ApprovalsFull(KairosError):
    code = "approvals_full"
    retryable = True


class PathDenied(KairosError):
    code = "path_denied"


class NotFound(KairosError):
    code = "not_found"


class NotRegularFile(KairosError):
    code = "not_regular_file"


class BinaryFile(KairosError):
    code = "binary_file"


class TooLarge(KairosError):
    code = "too_large"


class StaleFile(KairosError):
    """The file is not what it was when the change was shown or planned."""

    code = "stale_file"


class MatchNone(KairosError):
    code = "match_none"


class MatchMany(KairosError):
    code = "match_many"


class OverlappingEdits(KairosError):
    code = "overlapping_edits"


class NoChange(KairosError):
    code = "no_change"


class ToolNotOffered(KairosError):
    code = "tool_not_offered"


class Timeout(KairosError):
    code = "timeout"
    retryable = True


class CommandDenied(KairosError):
    code = "command_denied"


class EgressDenied(KairosError):
    code = "egress_denied"


class TlsError(KairosError):
    code = "tls_error"


class Unreachable(KairosError):
    code = "unreachable"
    retryable = True


class HttpError(KairosError):
    code = "http_error"


class OutcomeUnknown(Timeout):
    retryable = False  # a repetition could do it twice


class ProviderError(KairosError):
    code = "provider_error"


class StoreBusy(KairosError):
    code = "store_busy"
    retryable = True


class StoreUnavailable(KairosError):
    code = "store_unavailable"
    retryable = True


class StoreTooNew(StoreUnavailable):
    retryable = False  # it stays as new as it is


class StoreTooOld(KairosError):
    code = "store_too_old"


class StoreCorrupt(KairosError):
    code = "store_corrupt"


class Unreadable(StoreCorrupt):
    """A row does not hold what its column is for, or one that is referred to is gone. `run_id`: whose row it is."""


class NoSpace(KairosError):
    code = "no_space"
    retryable = True


class ConfigError(KairosError):
    code = "config_error"


class NotForCallers(Exception):
    """A signal between parts of the server. One that reaches a transport is a bug."""


class FenceLost(NotForCallers):
    """Another server has taken the run over: this server's fencing number is outdated."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"run {run_id} belongs to another server now")
        self.run_id = run_id


class NotMarked(NotForCallers):
    """The store did not take the mark that a call leaves, so the call was not made. It is to be begun again."""


class ReplayDiffers(NotForCallers):
    """A recorded step is not the one that the flow asks for at this path. `recorded`, `asked`: hex digests."""

    def __init__(self, path: str, recorded: str, asked: str) -> None:
        super().__init__(f"at {path} the record says {recorded[:12]}, the flow asks {asked[:12] or 'nothing'}")
        self.path, self.recorded, self.asked = path, recorded, asked


def replay_mismatch(run_id: str, mismatch: BaseException) -> Stale:
    """The error of a run whose record its flow can't replay: it can't go on, but another run can continue it."""
    go_on = f'planner_run continues="{run_id}" goes on from it.'
    return Stale(f"The record does not fit the flow: {mismatch}.", go_on, run_id=run_id)
