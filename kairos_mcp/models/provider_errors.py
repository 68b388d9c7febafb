"""Turn what went wrong at a provider into a Failure: whether to try again, when, whether its end is known, what to do.

No text of a failure holds a key: provider messages are cut and redacted, exceptions of libraries are never quoted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from kairos_mcp.core.errors import KairosError
from kairos_mcp.core.secret_forms import strip_passwords
from kairos_mcp.core.steps import CONTEXT_FULL, Failure
from kairos_mcp.models.network_causes import NetworkCause, cause_chain, find_network_cause
from kairos_mcp.models.pricing import Tariff
from kairos_mcp.models.provider_network import THROUGH_PROXY
from kairos_mcp.models.replies.errors import ErrorWords, read_error
from kairos_mcp.models.replies.exchange import BadProviderReply, ErrorInReply, Exchange, UnexpectedRedirect
from kairos_mcp.models.replies.variations import VARIATIONS
from kairos_mcp.models.replies.waits import read_wait

MAX_WAIT_S = 86_400.0  # a limit of a day is reset by then
_MESSAGE_CHARS = 300
_VARIED_STATUSES = (None, 400, 404, 422, 500)  # 404: OpenRouter's for what no model has; 500: llama.cpp's of a template
_NO_TOOLS = re.compile(
    r"(?:not|n't) support (?:tool|function)|support tool use|enable-auto-tool-choice"
    r"|(?:tools?|tool use|(?:tool|function) calling) (?:is|are) not supported",
    re.IGNORECASE,
)
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL")
_SECRET_FORM = re.compile(
    r"(?:sk|pk|rk|gsk|xai|hf|ghp|gho|AIza|AKIA|Bearer)[-_ ]?[A-Za-z0-9_\-.*]{8,}|[A-Za-z0-9_\-]{32,}"
)


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


def request_failure(
    error: Exception,
    tariff: Tariff,
    environ: Mapping[str, str],
    address: str | None,
    exchange: Exchange,
) -> Failure:
    """Return the failure of a request that was made. `address`: the provider's, where it is known.

    What the provider refuses, and a request may go without, is kept in the exchange: the next attempt goes without.
    """
    from pydantic_ai import exceptions as known

    kind = tariff.model.partition(":")[0]
    if (bad := next((cause for cause in cause_chain(error) if isinstance(cause, BadProviderReply)), None)) is not None:
        return _bad_reply_failure(bad, kind, environ, exchange)
    match error:
        case known.ModelTimeoutError(phase=phase) | known.ModelConnectionError(phase=phase):
            timed_out = isinstance(error, known.ModelTimeoutError)
            return _transport_failure(kind, phase, timeout=timed_out, address=address, cause=find_network_cause(error))
        case known.ModelHTTPError(status_code=status):
            said = read_error(error.body, status)
            if isinstance(error, known.ModelQuotaExceededError):
                said = replace(said, kind="quota")
            stated = (
                read_wait((error.headers or {}).get("retry-after")) if error.retry_after is None else error.retry_after
            )
            return _vary(said, kind, environ, exchange) or _status_failure(said, kind, environ, stated)
        case known.ModelQuotaExceededError() | known.ModelRateLimitError() | known.ModelOverloadedError():
            status = 402 if isinstance(error, known.ModelQuotaExceededError) else 429
            return _status_failure(read_error(_message_of(error), status), kind, environ, error.retry_after)
        case known.ModelContextWindowExceededError():
            return _overflow_failure(read_error(_message_of(error), 400), kind, environ)
        case known.ModelAPIError():
            words = _quote(read_error(_message_of(error)), environ)
            wait = _bound_wait(error.retry_after)
            return Failure("provider_error", f"{kind}: the request failed{words}.", True, wait, unknown_end=True)
        case known.UserError():
            words = _quote(read_error(str(error)), environ)
            return Failure("provider_error", f"{tariff.model} can't do what was asked of it{words}.")
        case _:
            return Failure("provider_error", f"{kind}: the reply has an unknown shape.", unknown_end=True)


_QUOTA_HINT = (
    "Add credit at the provider or raise the limit of this key there, or set KAIROS_MODEL to another provider's model;"
    " planner_run with `continues` then goes on from here."
)


def _status_failure(
    said: ErrorWords,
    kind: str,
    environ: Mapping[str, str],
    retry_after: object = None,
    *,
    unknown_end: bool = False,
    is_in_reply: bool = False,
) -> Failure:
    """Return the failure of an error with its status. `is_in_reply`: the body of a reply of status 200 names it."""
    words, wait = _quote(said, environ), _bound_wait(said.wait_s if retry_after is None else retry_after)
    if said.kind == "overflow":
        return replace(_overflow_failure(said, kind, environ), unknown_end=unknown_end)
    if said.kind == "quota":
        text = f"{kind}: the account has nothing left{words}. {_QUOTA_HINT}"
        return Failure("provider_error", text, unknown_end=unknown_end)
    if said.kind == "bad call":  # the model's, which was paid for; another try may be better
        text = f"{kind} could not take the model's call of a tool{words}."
        return Failure("provider_error", text, True, wait, unknown_end=True)
    match said.status:
        case 429 | 529:
            return Failure("provider_busy", f"{kind} is busy{words}.", True, wait, unknown_end=unknown_end)
        case int(status) if status >= 500 or status in (408, 409, 425):
            # 504: a gateway gave up waiting; the model behind it may go on.
            text = f"{kind} failed with {_name_status(status, is_in_reply=is_in_reply)}{words}."
            return Failure("provider_error", text, True, wait, unknown_end=unknown_end or status == 504)
        case None:
            text = f"{kind} answered with an error{words}. Check KAIROS_MODEL and what it supports."
            return Failure("provider_error", text, retryable=unknown_end, unknown_end=unknown_end)
        case status:
            named = _name_status(status, is_in_reply=is_in_reply)
            text = f"{kind} refused the request with {named}{words}. {_hint_for(said, kind)}"
            return Failure("provider_error", text, unknown_end=unknown_end)


def _name_status(status: int, *, is_in_reply: bool) -> str:
    return f"error {status} in a reply of status 200" if is_in_reply else f"status {status}"


def _overflow_failure(said: ErrorWords, kind: str, environ: Mapping[str, str]) -> Failure:
    text = f"{kind} takes no conversation of this length{_quote(said, environ)}."
    return Failure(CONTEXT_FULL, f"{text} Set context_tokens to what the model takes.")


def _vary(said: ErrorWords, kind: str, environ: Mapping[str, str], exchange: Exchange) -> Failure | None:
    """Return the failure of a request that can be made in another way, as an error asks for; None where it can't."""
    if said.status not in _VARIED_STATUSES or said.kind is not None:
        return None
    possible = (each for each in VARIATIONS if each.name in exchange.possible)
    name = next((each.name for each in possible if each.words.search(said.words)), None)
    if name is None:
        return None
    exchange.refused.add(name)
    text = f"{kind} takes no {name}{_quote(said, environ)}. It is asked again without."
    return Failure("provider_error", text, True, 0)


def _bad_reply_failure(bad: BadProviderReply, kind: str, environ: Mapping[str, str], exchange: Exchange) -> Failure:
    match bad:
        case UnexpectedRedirect(reason=reason):
            return Failure("provider_error", f"{kind}: {reason}. Set KAIROS_BASE_URL to where the provider is.")
        case ErrorInReply(body=body, has_begun=has_begun):
            exchange.note_repair("an error in a reply of status 200 was taken as that error")
            said = read_error(body)
            varied = None if has_begun else _vary(said, kind, environ, exchange)
            return varied or _status_failure(said, kind, environ, unknown_end=has_begun, is_in_reply=True)
        case BadProviderReply(reason=reason, retryable=is_retryable):
            text = f"{kind}: the server's reply can't be used: {redact_keys(reason, environ)}."
            hint = "" if is_retryable or " set " in reason else " Check KAIROS_BASE_URL."
            return Failure("provider_error", f"{text}{hint}", is_retryable, unknown_end=True)


def _transport_failure(
    kind: str, phase: str | None, *, timeout: bool, address: str | None, cause: NetworkCause | None
) -> Failure:
    """Return the failure of a connection. A request that was sent has an unknown end; an unsent one cost nothing."""
    sent = phase not in ("pool", "connect") and not (cause and cause.is_refused)
    where = f" at {strip_passwords(address)}" if address else ""
    what = "did not answer in time" if timeout else ("broke off" if sent else "can't be reached")
    why = f" ({cause.words})" if cause else ""
    through = (address or "").partition(THROUGH_PROXY)[2]
    hint = (cause and cause.hint) or f"Check {through or 'KAIROS_BASE_URL'} and the network."
    code = "timeout" if timeout else "provider_error"
    text = f"{kind}{where} {what}{why}."
    return Failure(code, text if sent else f"{text} {hint}", True, unknown_end=sent)


def _bound_wait(seconds: object) -> float | None:
    """Return how many seconds the provider asks to wait, at most MAX_WAIT_S; None where it gives no valid number."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
        return None
    return min(float(seconds), MAX_WAIT_S)


def _hint_for(said: ErrorWords, kind: str) -> str:
    if _NO_TOOLS.search(said.words):
        return 'Set dialect = "text", by which the prompt lists the tools, or KAIROS_MODEL to a model that has tools.'
    match said.status:
        case 401:
            return f"Check {key_variable(kind)}."
        case 403 if said.is_page:
            return "A gateway or firewall on the way sent this page, not the provider. Check the network and the proxy."
        case 403:
            return f"Check what the key in {key_variable(kind)} may do: this model, this region, this project."
        case 404:
            end = ", which mostly ends in /v1" if kind.startswith("openai") else ""
            return f"Check KAIROS_MODEL and KAIROS_BASE_URL{end}."
        case 413:
            return "Set a smaller context_tokens."
        case _:
            return "Check KAIROS_MODEL and what it supports."


def _message_of(error: object) -> object:
    """Return the body of an error, else its message."""
    return getattr(error, "body", None) or getattr(error, "message", None)


def _quote(said: ErrorWords, environ: Mapping[str, str]) -> str:
    """Return `: WORDS` with the provider's own words, redacted before they are cut; empty without any."""
    words = redact_keys(said.words, environ).rstrip(".")
    cut = words if len(words) <= _MESSAGE_CHARS else f"{words[:_MESSAGE_CHARS]}…"
    return f": {cut}" if cut else ""


def redact_keys(text: str, environ: Mapping[str, str]) -> str:
    """Redact everything in the text that is a key in the environment, or looks like a key."""
    for name, value in environ.items():
        if len(value) >= 6 and _SECRET_NAME.search(name.upper()):
            text = text.replace(value.strip(), "***")
    return _SECRET_FORM.sub("***", text)
