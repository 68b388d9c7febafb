"""How events reach somebody outside: the desktop, a command of the person's, ntfy, webhooks. All of these block."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from hmac import digest
from typing import Literal, NamedTuple

from kairos_mcp.core.errors import EgressDenied, KairosError, Timeout, TlsError
from kairos_mcp.core.messages import JsonObject
from kairos_mcp.core.text import count_of
from kairos_mcp.core.tool import StopSignal
from kairos_mcp.core.urls import HostRule, Url, parse_url
from kairos_mcp.settings.secret_refs import read_secret
from kairos_mcp.settings.settings import Settings
from kairos_mcp.settings.table_values import NotifySetting
from kairos_mcp.store.page_files import find_page_ports
from kairos_mcp.tools.http.client import HttpClient, HttpReply, HttpRequest

SEND_S = 10.0  # for a program or a receiver to take what it is given
REPLY_BYTES = 4_096  # of an endpoint, which has a challenge to return
MAX_LINES = 12  # of a notification; a batch may hold more events
SECRET_PREFIX = "whsec_"
# What a program of the person's needs to show something. Keys of providers are not among it.
_PASSED_ON = (
    "PATH", "HOME", "USER", "LANG", "TERM", "TZ", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "XDG_RUNTIME_DIR",
    "DBUS_SESSION_BUS_ADDRESS",
)  # fmt: skip
_OSASCRIPT = (
    "osascript", "-e", "on run argv", "-e", "display notification (item 2 of argv) with title (item 1 of argv)",
    "-e", "end run",
)  # fmt: skip

Why = Literal["connection_refused", "timeout", "tls_error", "http_3xx", "http_4xx", "http_5xx", "challenge_failed"]


class Undelivered(Exception):
    """A receiver did not take what it was sent. `status`: of its reply, if it gave one."""

    def __init__(self, why: Why, status: int | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.status = status


class Notification(NamedTuple):
    """One message to a person: about one event, or several."""

    title: str
    text: str
    link: str | None
    events: Sequence[JsonObject]


def make_notification(occurrences: Sequence[JsonObject]) -> Notification:
    """Word these events for a person."""
    lines = [str(each["data"]["text"]) for each in occurrences]
    more = [] if len(lines) <= MAX_LINES else [f"and {count_of(len(lines) - MAX_LINES, 'more thing')}"]
    links = [each["data"]["link"] for each in occurrences if str(each["data"].get("link", "")).startswith("http")]
    waiting = sum(each["name"] == "run.waiting" for each in occurrences)
    title = f"Kairos: {count_of(waiting, 'thing')} waiting for you" if waiting else "Kairos"
    link = links[0] if len(set(links)) == 1 else next((each.partition("#")[0] for each in links), None)
    return Notification(title, "\n".join([*lines[:MAX_LINES], *more]), link, occurrences)


def make_client(settings: Settings, listed: Sequence[HostRule] = ()) -> HttpClient:
    """Make the client that sends to receivers. It checks addresses as http_fetch does. `listed`: hosts that a person
    wrote down as receivers, which may be private ones."""
    private = (*settings.private_hosts, *listed)
    ports = partial(find_page_ports, settings.home)
    return HttpClient((), private, body_bytes=REPLY_BYTES, page_ports=ports)


def notify_person(setting: NotifySetting, what: Notification, settings: Settings) -> None:
    """Send a notification to a receiver of the settings. Raises Undelivered, ConfigError."""
    match setting.to:
        case "desktop":
            text = what.text if what.link is None else f"{what.text}\n{what.link}"
            if sys.platform == "darwin":
                _run_program([*_OSASCRIPT, what.title, text])
            else:
                _run_program(["notify-send", "--app-name=Kairos", "--", what.title, text])
        case "command":
            _run_program(setting.command, json.dumps(what._asdict()).encode())
        case "ntfy":
            headers = [("Title", what.title), *([("Click", what.link)] if what.link else [])]
            if setting.secret is not None:
                headers.append(("Authorization", f"Bearer {read_secret(setting.secret)}"))
            _post_to_listed(setting, headers, what.text.encode(), settings)
        case "webhook":
            body = json.dumps(what._asdict()).encode()
            ids = "\n".join(str(event["eventId"]) for event in what.events)
            message_id = f"msg_{sha256(ids.encode()).hexdigest()[:32]}"  # the same over all tries
            keys = () if setting.secret is None else (decode_secret(read_secret(setting.secret)),)
            headers = [("Content-Type", "application/json"), *signature_headers(keys, message_id, body)]
            _post_to_listed(setting, headers, body, settings)


def _post_to_listed(
    setting: NotifySetting, headers: Sequence[tuple[str, str]], body: bytes, settings: Settings
) -> None:
    url = parse_url(setting.url)
    post(make_client(settings, (HostRule(url.host, port=url.port),)), url, headers, body)


def _run_program(argv: Sequence[str], stdin: bytes = b"", environ: Mapping[str, str] = os.environ) -> None:
    passed_on = {name: value for name, value in environ.items() if name in _PASSED_ON or name.startswith("LC_")}
    try:
        subprocess.run(argv, input=stdin, env=passed_on, timeout=SEND_S, check=True, capture_output=True)
    except subprocess.TimeoutExpired:
        raise Undelivered("timeout") from None
    except (OSError, subprocess.CalledProcessError):
        raise Undelivered("connection_refused") from None


# -- webhooks ---------------------------------------------------------------------------------------------------


def decode_secret(secret: str) -> bytes:
    """Return the key in a secret of Standard Webhooks: `whsec_` and 24 to 64 bytes as base64. Raises ValueError."""
    key = b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    if not secret.startswith(SECRET_PREFIX) or not 24 <= len(key) <= 64:
        raise ValueError("not a secret of Standard Webhooks")
    return key


def signature_headers(
    keys: Sequence[bytes], message_id: str, body: bytes, now: Callable[[], float] = time.time
) -> list[tuple[str, str]]:
    """Return the headers of Standard Webhooks, signed by each of these keys; the time is that of this try."""
    at = int(now())
    signed = b"%s.%d.%s" % (message_id.encode(), at, body)
    signatures = " ".join(f"v1,{b64encode(digest(key, signed, sha256)).decode()}" for key in keys)
    headers = [("webhook-id", message_id), ("webhook-timestamp", str(at))]
    return [*headers, ("webhook-signature", signatures)] if keys else headers


def post(client: HttpClient, url: Url, headers: Sequence[tuple[str, str]], body: bytes) -> HttpReply:
    """Send a POST, follow no redirect, and return a reply that takes it. Raises Undelivered."""
    request = HttpRequest("POST", url, tuple(headers), body)
    try:
        reply = client.send(request, time.monotonic() + SEND_S, StopSignal())
    except EgressDenied:
        raise Undelivered("connection_refused") from None  # a receiver learns nothing about addresses
    except Timeout:
        raise Undelivered("timeout") from None
    except TlsError:
        raise Undelivered("tls_error") from None
    except KairosError:
        raise Undelivered("connection_refused") from None
    if not reply.is_success:
        kinds: Mapping[int, Why] = {3: "http_3xx", 4: "http_4xx"}
        raise Undelivered(kinds.get(reply.head.status // 100, "http_5xx"), reply.head.status)
    return reply


def reply_json(reply: HttpReply) -> object:
    """Return the JSON of a reply; None where it holds none."""
    try:
        value: object = json.loads(reply.body.content)
    except (ValueError, RecursionError):
        return None
    return value
