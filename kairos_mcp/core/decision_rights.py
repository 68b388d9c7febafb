"""Who calls, and who may decide what: the one table of kinds of decisions, ways to make them, and settings.

Whoever calls a tool of this server may be the model that wants the thing decided, so a tool's argument decides only
where the configuration trusts its host with that. A dialog is shown by the client to its user; `approvals = "person"`
trusts no client with it. A command is typed by the owner of the state folder, and only they can enter the page. A way
that a row does not list is refused under every setting.

Nothing here does anything, and nothing else may hold a second copy of these answers; docs/approvals.md has the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, get_args

from kairos_mcp.core.errors import ApprovalRequired
from kairos_mcp.core.quick_dataclass import dataclass

LOCAL = "local"
"""The principal who owns the state folder: whoever uses stdio, the commands, or HTTP by the token made for them."""


VIA_DOCTOR = "doctor"
"""What a run came through by which `doctor` tries the provider: lists of a user's runs leave it out."""


BY_OWNER = ("command", "page")
"""What only a person uses who owns the state folder or the database."""


class Actor(NamedTuple):
    """Who did something, as rows record it. `via`: what it came through (mcp, command, page, elicitation, clock,
    doctor)."""

    principal: str
    via: str
    client: str


@dataclass(frozen=True, slots=True)
class Caller:
    """A principal, and the client through which they call.

    `samples`: the client offers its own model. `elicits`: it can show a dialog. `decides`: they may decide what the
    gate asks, by a dialog or an argument. `session`: the client's session. `sees_all`: this look is one at the runs of
    all principals, by somebody who only looks; nothing may be changed by such a caller.
    """

    principal: str = LOCAL
    via: str = "mcp"
    client: str = ""
    samples: bool = False
    elicits: bool = False
    decides: bool = True
    session: str = ""
    sees_all: bool = False

    @property
    def actor(self) -> Actor:
        """The caller as rows record them."""
        return Actor(self.principal, self.via, self.client)

    @property
    def is_person(self) -> bool:
        """Whether it is a person who owns the state folder: by a command in a terminal, or on the page."""
        return self.via in BY_OWNER

    @property
    def is_local(self) -> bool:
        """Whether it is the owner of the state folder: they alone are shown full paths and commands."""
        return self.principal == LOCAL

    def visible_path(self, folder: str) -> str:
        """Return a folder as this caller may see it: its full path, or only its last part."""
        return folder if self.is_local else folder.rstrip("/").rpartition("/")[2]


def person_on_page(principal: str = LOCAL) -> Caller:
    """The person in the browser, acting on what is this principal's: whoever owns the state folder owns all in it."""
    return Caller(principal, via="page", client="page")


OBSERVER = Caller("observer", via="observe", decides=False, sees_all=True)
"""Who looks at the runs of all principals on the page for operators: its principal owns none."""


LOCAL_CALLER = Caller()
"""The owner of the state folder, through a client of which nothing is known."""


ApprovalsSetting = Literal["ask", "host", "person"]
"""The setting `approvals`: a client's dialog decides; whoever calls a tool decides too; nobody but a command or the
page does."""

DecisionKind = Literal["approval", "settlement", "registration", "rule", "release"]
"""A call that waits for approval; one whose outcome is unknown; a tool or server that an agent proposed; a remembered
approval; the runs of a server that was stopped."""

DecisionWay = Literal["argument", "dialog", "command", "page"]
"""An argument of one of this server's tools, a dialog of the caller's client, a command in a terminal, the page in a
browser."""

Verdict = Literal["approve", "deny"]
"""What is decided about a call that waits for approval."""

Settlement = Literal["reattempt", "already_done"]
"""What is decided about a call whose outcome is unknown: make it again, or go on as if it had been made."""

KINDS: tuple[DecisionKind, ...] = get_args(DecisionKind)
WAYS: tuple[DecisionWay, ...] = get_args(DecisionWay)
APPROVALS: tuple[ApprovalsSetting, ...] = get_args(ApprovalsSetting)

_ALWAYS = frozenset(APPROVALS)
_BY_OWNER: Mapping[DecisionWay, frozenset[ApprovalsSetting]] = {"command": _ALWAYS, "page": _ALWAYS}

RIGHTS: Mapping[DecisionKind, Mapping[DecisionWay, frozenset[ApprovalsSetting]]] = MappingProxyType(
    {
        "approval": {"argument": frozenset({"host"}), "dialog": frozenset({"ask", "host"}), **_BY_OWNER},
        "settlement": {"argument": frozenset({"host"}), "dialog": frozenset({"ask", "host"}), **_BY_OWNER},
        "registration": _BY_OWNER,
        "rule": _BY_OWNER,
        "release": {"command": _ALWAYS},
    }
)
"""For each kind of decision the ways to make it, and the settings under which each is open."""

_WAY_OF: Mapping[str, DecisionWay] = MappingProxyType({"elicitation": "dialog", "command": "command", "page": "page"})

_WORDS: Mapping[DecisionKind, str] = MappingProxyType(
    {
        "approval": "whether this call may be made",
        "settlement": "what became of this call",
        "registration": "whether this tool is added",
        "rule": "what is allowed from now on",
        "release": "whether a server's runs are taken from it",
    }
)


def decision_way(through: str) -> DecisionWay:
    """Return the way that a row names in `through`: what is no dialog, command or page is a tool's argument."""
    return _WAY_OF.get(through, "argument")


def may_decide(kind: DecisionKind, way: DecisionWay, approvals: ApprovalsSetting) -> bool:
    """Whether this kind of decision may be made in this way under this setting."""
    return approvals in RIGHTS[kind].get(way, ())


def check_decision_right(
    kind: DecisionKind, way: DecisionWay, approvals: ApprovalsSetting, command: str = "", *, run_id: str | None = None
) -> None:
    """Raise ApprovalRequired where the decision may not be made in this way. `command`: how a person makes it."""
    if may_decide(kind, way, approvals):
        return
    whoever = "whoever calls this tool" if way == "argument" else "a dialog of this client"
    ways = "; a client that can show a dialog asks in run_continue" if may_decide(kind, "dialog", approvals) else ""
    hint = f"Run: `{command}`{ways}." if command else "A person decides it on the command line of this machine."
    raise ApprovalRequired(f"A person decides {_WORDS[kind]}, not {whoever}.", hint, run_id=run_id)


def table_cells() -> Iterator[tuple[DecisionKind, DecisionWay, str]]:
    """Yield the rows of a table: for each kind and way `yes`, `no such way`, or the settings that allow it."""
    for kind in KINDS:
        for way in WAYS:
            under = RIGHTS[kind].get(way)
            if under is None:
                yield kind, way, "no such way"
            elif under == _ALWAYS:
                yield kind, way, "yes"
            else:
                yield kind, way, "under " + " or ".join(f'`"{setting}"`' for setting in APPROVALS if setting in under)
