"""Turn what went wrong at a provider into a Failure: whether to try again, when, whether its end is known, what to do.

No text of a failure holds a key: provider messages are cut and redacted, exceptions of libraries are never quoted.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.secret_forms import strip_passwords
from kairos_mcp.core.steps import Failure
from kairos_mcp.models.pricing import Tariff

MAX_WAIT_S = 30.0
_MESSAGE_CHARS = 300
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL")
_SECRET_FORM = re.compile(
    r"(?:sk|pk|rk|gsk|xai|hf|ghp|gho|AIza|AKIA|Bearer)[-_ ]?[A-Za-z0-9_\-.*]{8,}|[A-Za-z0-9_\-]{32,}"
)


class BadProviderReply(Exception):
    """A reply that no library should see. `retryable`: another attempt may succeed."""

    def __init__(self, reason: str, *, retryable: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retryable = retryable


class NoStream(BadProviderReply):
    """A reply that came whole where pieces were asked for."""

    def __init__(self) -> None:
        super().__init__("it came whole, where pieces were asked for", retryable=True)


class InvalidProviderUsage(BadProviderReply):
    """A reply whose usage is no count of tokens."""


class UnexpectedRedirect(BadProviderReply):
    """A reply that only names another address. It isn't followed, since the key would go along.

    Nobody has worked on the request.
    """

    def __init__(self, status: int, host: str | None) -> None:
        where = "elsewhere" if host is None else f"to {host}"
        super().__init__(f"it answered with status {status}, which leads {where}, and a request with a key stays here")


_KEY_VARIABLES = {
    "bedrock": "AWS_BEARER_TOKEN_BEDROCK",
    "cohere": "CO_API_KEY",
    "huggingface": "HF_TOKEN",
}


_ONE_VARIABLE = ("openai", "openai-chat", "openai-responses", "anthropic")  # whose key can stand nowhere else


def key_variable(kind: str) -> str:
    """Return the name of the environment variable that holds a provider's key."""
    return _KEY_VARIABLES.get(kind) or f"{kind.partition('-')[0].upper()}_API_KEY"


def connection_failure(error: Exception, name: str, environ: Mapping[str, str]) -> Failure:
    """Return the failure of a client that could not be made: a setting, a key or a package is missing."""
    kind = name.partition(":")[0]
    match error:
        case KairosError():
            return Failure(error.code, str(error))
        case ImportError():
            extra = kind.partition("-")[0]
            return Failure("config_error", f"The package for {kind} is missing. pip install 'kairos-loop[{extra}]'.")
        case _ if kind in _ONE_VARIABLE and not environ.get(key_variable(kind)):
            hint = "Set it; for a server of your own set KAIROS_BASE_URL."
            return Failure("config_error", f"{name} needs a key: {key_variable(kind)} is not set. {hint}")
        case _:
            other_variables = ", AWS_DEFAULT_REGION" if kind == "bedrock" else ""
            hint = f"Set {key_variable(kind)}{other_variables}, and check KAIROS_MODEL."
            return Failure("config_error", f"{name} can't be used: its key is missing or the model unknown. {hint}")


def request_failure(error: Exception, tariff: Tariff, environ: Mapping[str, str], address: str | None) -> Failure:
    """Return the failure of a request that was made. `address`: the provider's, where it is known."""
    from pydantic_ai import exceptions as known

    kind = tariff.model.partition(":")[0]
    if (bad := next((cause for cause in cause_chain(error) if isinstance(cause, BadProviderReply)), None)) is not None:
        return _bad_reply_failure(bad, kind)
    message = redact_keys(_provider_message(error), environ)
    match error:
        case known.ModelQuotaExceededError():
            return Failure("provider_error", f"{kind}: the account has nothing left{message}.")
        case known.ModelRateLimitError() | known.ModelOverloadedError():
            return Failure("provider_busy", f"{kind} is busy{message}.", True, _retry_after_s(error))
        case known.ModelTimeoutError(phase=phase) | known.ModelConnectionError(phase=phase):
            timed_out = isinstance(error, known.ModelTimeoutError)
            return _transport_failure(kind, phase, timeout=timed_out, address=address, cause=_network_cause(error))
        case known.ModelHTTPError(status_code=status) if status >= 500 or status in (408, 409, 425):
            timed_out = status == 504  # a gateway gave up waiting; the model behind it may go on
            text = f"{kind} failed with status {status}{message}."
            return Failure("provider_error", text, True, _retry_after_s(error), unknown_end=timed_out)
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


def _bad_reply_failure(bad: BadProviderReply, kind: str) -> Failure:
    match bad:
        case InvalidProviderUsage(reason=reason):
            return Failure("usage_invalid", f"{kind}: the reply is not taken, since {reason}.", unknown_end=True)
        case UnexpectedRedirect(reason=reason):
            return Failure("provider_error", f"{kind}: {reason}. Set KAIROS_BASE_URL to where the provider is.")
        case BadProviderReply(reason=reason, retryable=True):
            return Failure("provider_error", f"{kind}: the reply is useless: {reason}.", True, unknown_end=True)
        case BadProviderReply(reason=reason):
            text = f"{kind}: the reply is useless: {reason}. Check KAIROS_BASE_URL."
            return Failure("provider_error", text, unknown_end=True)


def _network_cause(error: Exception) -> str | None:
    """Return why a connection failed, in the words of the operating system: the innermost error of the network."""
    causes = [cause for cause in cause_chain(error) if isinstance(cause, OSError)]
    # A name that can't be resolved has a number below 0 and its own words; of others asyncio words it with the address.
    named = [os.strerror(each.errno) if each.errno > 0 else each.strerror for each in causes if each.errno is not None]
    return named[-1] if named else None


def _transport_failure(
    kind: str, phase: str | None, *, timeout: bool, address: str | None, cause: str | None
) -> Failure:
    """Return the failure of a connection. A request that was sent has an unknown end; an unsent one cost nothing."""
    sent = phase not in ("pool", "connect")
    where = f" at {strip_passwords(address)}" if address else ""
    what = "did not answer in time" if timeout else ("broke off" if sent else "can't be reached")
    why = "" if cause is None else f" ({cause})"
    hint = "" if sent else " Check KAIROS_BASE_URL and the network."
    code = "timeout" if timeout else "provider_error"
    return Failure(code, f"{kind}{where} {what}{why}.{hint}", True, unknown_end=sent)


def _retry_after_s(error: object) -> float | None:
    """Return how many seconds the provider asks to wait, at most MAX_WAIT_S; None where it gives no valid number."""
    after = getattr(error, "retry_after", None)
    if not isinstance(after, int | float) or not 0 <= after < float("inf"):
        return None
    return min(float(after), MAX_WAIT_S)


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
    """Return the provider's own message, if it is in one of the usual places."""
    match getattr(error, "body", None):
        case {"error": {"message": str(text)}} | {"error": str(text)} | {"message": str(text)} | {"detail": str(text)}:
            return f": {' '.join(text.split())[:_MESSAGE_CHARS]}"
        case _:
            return ""


def redact_keys(text: str, environ: Mapping[str, str]) -> str:
    """Redact everything in the text that is a key in the environment, or looks like a key."""
    for name, value in environ.items():
        if len(value) >= 6 and _SECRET_NAME.search(name.upper()):
            text = text.replace(value.strip(), "***")
    return _SECRET_FORM.sub("***", text)


def cause_chain(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(10):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__
