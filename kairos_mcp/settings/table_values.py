"""What the tables of a settings file define: a rule of the gate, a server, what a client shows, flow, OAuth.

`tables.py` validates them and makes these values.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal

from kairos_mcp.core.effects import KEY_LIFE_S
from kairos_mcp.core.quick_dataclass import dataclass

if TYPE_CHECKING:  # read by most starts, and filled in by few
    from kairos_mcp.core.effects import Effect, Reach
    from kairos_mcp.core.limits import Limits
    from kairos_mcp.core.paths import Risk, Scope
    from kairos_mcp.core.urls import HostRule

GateVerdict = Literal["allow", "ask", "deny"]
FlowOfRule = Literal["watched", "unwatched", "clean"]
"""What an allow rule says of what its calls take along: the settings decide; nobody looks; it allows where it is clean
alone, whatever the settings say."""
DeclaredEffect = Literal["read", "idempotent", "keyed", "irreversible"]  # of a foreign tool: none looks at files
FlowMode = Literal["off", "ask", "deny"]
NotifyWay = Literal["desktop", "command", "ntfy", "webhook"]
NOTIFIED = ("run.waiting", "run.ended", "run.stopped")
FOREIGN_FILES = ("node_modules/**", "vendor/**", "third_party/**", ".venv/**")


@dataclass(frozen=True, slots=True)
class GateRule:
    """One rule of the gate; gate.py defines how rules are applied.

    `tools`, `category`, `agent` and `mandate` are globs over names, `paths` globs over the paths that a call names,
    `argv` the pattern of a command (core/command_patterns.py). What is not given matches everything.
    `flow`: see `FlowOfRule`.
    """

    tools: str
    verdict: GateVerdict
    paths: tuple[str, ...] = ()
    scope: Scope | None = None
    effect: Effect | None = None
    risk: Risk | None = None
    agent: str | None = None
    mandate: str | None = None
    argv: tuple[str, ...] = ()
    category: str | None = None
    flow: FlowOfRule = "watched"


@dataclass(frozen=True, slots=True)
class DayBudget:
    """What each of some principals may use on a day: globs over their names, and the caps; what has none, the day's
    own limits say. With a `group` they share one sum, which counts beside the day of each."""

    principals: tuple[str, ...]
    caps: Limits
    group: str | None = None

    @property
    def account_name(self) -> str:
        """The name of the group's day account, which no principal has."""
        return f"group:{self.group}"

    def holds_for(self, principal: str) -> bool:
        """Whether this principal is one of them."""
        return any(fnmatchcase(principal, pattern) for pattern in self.principals)


@dataclass(frozen=True, slots=True)
class ClientSetting:
    """What a person states of the dialogs of a client of this name, whatever its version: how many lines of a message
    it shows, how many columns of each, and whether its user can open a link and come back (`url`)."""

    name: str
    lines: int
    width: int
    url: bool


@dataclass(frozen=True, slots=True)
class NotifySetting:
    """Where a person is notified: `to` what, by the `command` or at the `url` that it needs. `secret`: refers to what
    signs a webhook, or to a token of ntfy. `events`: globs of their kinds. `quiet`: from when to when nothing is sent,
    as minutes of the day."""

    to: NotifyWay
    command: tuple[str, ...] = ()
    url: str = ""
    secret: str | None = None
    events: tuple[str, ...] = NOTIFIED
    quiet: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class ServerSetting:
    """A downstream MCP server: a program to start (`command`, with its arguments), or an address (`url`).

    Values of `env` and `headers` may refer to secrets: `env:NAME`, `file:PATH`, within a text `${env:NAME}`.
    `${workspace}` in the command, its environment and `cwd` is the workspace's path. `effects`: effect classes by glob
    over the server's own tool names; `reaches`, `trusted`, `private`: what flows through them, in the same way (see
    `ToolSpec`). `tools`: globs of the tools to offer. `key_life_s`: how long it keeps the key of a keyed call.
    """

    name: str
    command: tuple[str, ...] = ()
    url: str | None = None
    env: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    cwd: str | None = None
    sandbox: bool = True
    effects: tuple[tuple[str, Effect], ...] = ()
    tools: tuple[str, ...] = ("*",)
    timeout_s: float = 60
    reaches: tuple[tuple[str, Reach], ...] = ()
    trusted: tuple[tuple[str, bool], ...] = ()
    private: tuple[tuple[str, bool], ...] = ()
    key_life_s: float = KEY_LIFE_S
    content: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class FlowSetting:
    """What is done about what calls take along (core/flow.py): `mode`; whether a change has to be wished for (`wish`);
    the `hosts` that are trusted with words of one's own; globs of files that others wrote (`foreign`)."""

    mode: FlowMode = "ask"
    wish: bool = True
    hosts: tuple[HostRule, ...] = ()
    foreign: tuple[str, ...] = FOREIGN_FILES


@dataclass(frozen=True, slots=True)
class OAuthSetting:
    """Which OAuth access tokens (JWT) are accepted over HTTP: of `issuer`, for `audience`, signed by one of
    `algorithms` with a key of `jwks_uri`. `resource`: the address under which clients know this server. `client_id`: as
    whom the page for operators gets a token, by a code from `authorize_uri` that `token_uri` exchanges."""

    issuer: str
    audience: str
    jwks_uri: str
    algorithms: tuple[str, ...]
    resource: str
    client_id: str | None = None
    authorize_uri: str | None = None
    token_uri: str | None = None
