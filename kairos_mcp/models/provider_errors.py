"""What went wrong at a provider as a Failure: may it be tried again, when, is its end known, and what cures it.

No text of a failure holds a key: provider messages are cut and masked, exceptions of libraries are never quoted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.secret_forms import strip_passwords
from kairos_mcp.core.steps import Failure
from kairos_mcp.models.pricing import Tariff

LONGEST_WAIT_S = 30.0
_MESSAGE_CHARS = 300
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL")
_SECRET_FORM = re.compile(
    r"(?:sk|pk|rk|gsk|xai|hf|ghp|gho|AIza|AKIA|Bearer)[-_ ]?[A-Za-z0-9_\-.*]{8,}|[A-Za-z0-9_\-]{32,}"
)


class BadProviderReply(Exception):
    """A reply that no library should see. `passing`: another attempt may go well."""

    def __init__(self, reason: str, *, passing: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.passing = passing


class InvalidProviderUsage(BadProviderReply):
    """A reply whose report of tokens is none."""


class Redirected(BadProviderReply):
    """A reply that only names another address: nobody has worked on the request. It isn't followed, since the key
    would go along."""

    def __init__(self, status: int, host: str | None) -> None:
        where = "elsewhere" if host is None else f"to {host}"
        super().__init__(f"it answered with status {status}, which leads {where}, and a request with a key stays here")


_KEY_VARIABLES = {
    "bedrock": "AWS_BEARER_TOKEN_BEDROCK",
    "cohere": "CO_API_KEY",
    "huggingface": "HF_TOKEN",
}


def key_variable(kind: str) -> str:
    """The variable that a provider's key stands in."""
    return _KEY_VARIABLES.get(kind) or f"{kind.partition('-')[0].upper()}_API_KEY"


def connection_failure(error: Exception, name: str) -> Failure:
    """The client could not even be made: a setting, a key or a package is missing."""
    kind = name.partition(":")[0]
    match error:
        case KairosError():
            return Failure(error.code, str(error))
        case ImportError():
            named = kind.partition("-")[0]
            return Failure("config_error", f"The package for {kind} is missing. pip install 'kairos-mcp[{named}]'.")
        case _:
            other_variables = ", AWS_DEFAULT_REGION" if kind == "bedrock" else ""
            hint = f"Set {key_variable(kind)}{other_variables}, and check KAIROS_MODEL."
            return Failure("config_error", f"{name} can't be used: its key is missing or the model unknown. {hint}")


def request_failure(error: Exception, tariff: Tariff, environ: Mapping[str, str]) -> Failure:
    """What a request has ended in."""
    from pydantic_ai import exceptions as known

    kind = tariff.model.partition(":")[0]
    if (bad := next((each for each in _cause_chain(error) if isinstance(each, BadProviderReply)), None)) is not None:
        return _bad_reply(bad, kind)
    message = masked(_provider_message(error), environ)
    match error:
        case known.ModelQuotaExceededError():
            return Failure("provider_error", f"{kind}: the account has nothing left{message}.")
        case known.ModelRateLimitError() | known.ModelOverloadedError():
            return Failure("provider_busy", f"{kind} is busy{message}.", True, _retry_after_s(error))
        case known.ModelTimeoutError(phase=phase) | known.ModelConnectionError(phase=phase):
            return _connection_failure(kind, phase, timeout=isinstance(error, known.ModelTimeoutError), tariff=tariff)
        case known.ModelHTTPError(status_code=status) if status >= 500 or status in (408, 409, 425):
            gone = status == 504  # a gateway gave up waiting; whoever thinks behind it may go on
            text = f"{kind} failed with status {status}{message}."
            return Failure("provider_error", text, True, _retry_after_s(error), unknown_end=gone)
        case known.ModelHTTPError(status_code=status):
            text = f"{kind} refused the request with status {status}{message}. {_hint_for_status(status, kind)}"
            return Failure("provider_error", text)
        case known.ModelAPIError():
            return Failure(
                "provider_error", f"{kind}: the request failed{message}.", True, _retry_after_s(error), unknown_end=True
            )
        case known.UserError():
            return Failure("provider_error", f"{tariff.model} can't do what was asked of it{message}.")
        case _:
            return Failure("provider_error", f"{kind}: the reply has an unknown shape.", unknown_end=True)


def _bad_reply(bad: BadProviderReply, kind: str) -> Failure:
    match bad:
        case InvalidProviderUsage(reason=reason):
            return Failure("usage_invalid", f"{kind}: the reply is not taken, since {reason}.", unknown_end=True)
        case Redirected(reason=reason):
            return Failure("provider_error", f"{kind}: {reason}. Set KAIROS_BASE_URL to where the provider is.")
        case BadProviderReply(reason=reason, passing=True):
            return Failure("provider_error", f"{kind}: the reply is useless: {reason}.", True, unknown_end=True)
        case BadProviderReply(reason=reason):
            text = f"{kind}: the reply is useless: {reason}. Check KAIROS_BASE_URL."
            return Failure("provider_error", text, unknown_end=True)


def _connection_failure(kind: str, phase: str | None, *, timeout: bool, tariff: Tariff) -> Failure:
    """The end of a call that was sent is unknown; one that never got through has cost nothing."""
    sent = phase not in ("pool", "connect")
    where = f" at {strip_passwords(tariff.base_url)}" if tariff.base_url else ""
    what = "did not answer in time" if timeout else ("broke off" if sent else "can't be reached")
    hint = "" if sent else " Check KAIROS_BASE_URL and the network."
    return Failure("timeout" if timeout else "provider_error", f"{kind}{where} {what}.{hint}", True, unknown_end=sent)


def _retry_after_s(error: object) -> float | None:
    """How long the provider wants to be left alone, within bounds; None where it says nothing that makes sense."""
    after = getattr(error, "retry_after", None)
    if not isinstance(after, int | float) or not 0 <= after < float("inf"):
        return None
    return min(float(after), LONGEST_WAIT_S)


def _hint_for_status(status: int, kind: str) -> str:
    match status:
        case 401 | 403:
            return f"Check {key_variable(kind)}."
        case 404:
            return "Check KAIROS_MODEL and KAIROS_BASE_URL."
        case 413:
            return "Set a smaller context_tokens."
        case _:
            return "Check KAIROS_MODEL and what it supports."


def _provider_message(error: Exception) -> str:
    """What the provider itself said, if it said it in the usual place."""
    match getattr(error, "body", None):
        case {"error": {"message": str(text)}} | {"error": str(text)} | {"message": str(text)} | {"detail": str(text)}:
            return f": {' '.join(text.split())[:_MESSAGE_CHARS]}"
        case _:
            return ""


def masked(text: str, environ: Mapping[str, str]) -> str:
    """The text without anything that is a key of this process or looks like one."""
    for name, value in environ.items():
        if len(value) >= 6 and _SECRET_NAME.search(name.upper()):
            text = text.replace(value.strip(), "***")
    return _SECRET_FORM.sub("***", text)


def _cause_chain(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(10):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__
