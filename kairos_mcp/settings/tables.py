"""The tables that define a rule of the gate, a server, a day or a login, and the values that are made of them.

They come from outside: from the settings file; a server from a proposal too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    create_model,
    model_validator,
)
from pydantic_core import PydanticCustomError

from kairos_mcp.core.builtin_tools import RUN_COMMAND
from kairos_mcp.core.command_patterns import check_pattern
from kairos_mcp.core.effects import KEY_LIFE_S, Effect, Reach
from kairos_mcp.core.limits import DAY_UNITS, UNLIMITED
from kairos_mcp.core.limits_table import limits_from_json
from kairos_mcp.core.paths import Risk, Scope
from kairos_mcp.core.urls import parse_host_rule
from kairos_mcp.settings.secret_refs import REFERENCE_FORMS, is_reference
from kairos_mcp.settings.table_values import (
    FOREIGN_FILES,
    DayBudget,
    DeclaredEffect,
    FlowMode,
    FlowSetting,
    GateRule,
    GateVerdict,
    OAuthSetting,
    ServerSetting,
)


def check_reference(text: str) -> str:
    """Refuse a key itself, which does not belong into a setting; the error does not quote it."""
    if not is_reference(text):
        raise PydanticCustomError("reference", "it has to refer to a key: {forms}", {"forms": REFERENCE_FORMS})
    return text


_T = TypeVar("_T")
Text = Annotated[str, Field(min_length=1)]
ServerName = Annotated[str, Field(pattern=r"^[A-Za-z0-9]+(?:[-_][A-Za-z0-9]+)*$", max_length=24)]
ClientName = Annotated[str, Field(min_length=1, max_length=100)]
_VERDICTS: Mapping[str, Any] = {"auto": "allow", "propose": "ask", "clean": "allow"}
"""What other words for verdicts mean; a rule that says "clean" allows under a condition."""


class StrictTable(BaseModel):
    """A table of the settings file. Each key has a description, and an example if its default says nothing."""

    model_config = ConfigDict(strict=True, extra="forbid", defer_build=True)


class GateTable(StrictTable):
    """The keys of `[[gate]]`."""

    tools: Text = Field("", description="The rule's tools, by a glob over their names.", examples=["edit_*"])
    verdict: Literal[GateVerdict, "clean", "auto", "propose"] = Field(
        description='"allow", "ask" (a person decides), "deny", or "clean": allowed where [flow] finds nothing in what '
        'the call takes along, asked about where it does, or where its mode is "off". "auto" means "allow", "propose" '
        'means "ask".',
        examples=["allow"],
    )
    flow: Literal["off"] | None = Field(
        None,
        description='With "off", calls that this rule allows are not asked about for what they take along.',
        examples=["off"],
    )
    paths: list[Text] | None = Field(
        None,
        description="Narrows the rule to calls with matching paths. To allow a call, all its paths must match; to ask "
        "or deny, one is enough. Searches, lists and trees leave out paths that the rule denies or asks about, and "
        "the result says so. A rule on read_file also hides a file's text from searches, plans, edits and programs in "
        'a sandbox, but not its name from lists: write tools = "*" for that. A program (run_command) is judged by its '
        "cwd.",
        examples=[["docs/**"]],
    )
    scope: Scope | None = Field(
        None,
        description='Narrows the rule to a scope of paths, in the same way: "L0" the server\'s own files, "L1" '
        'instructions to agents, "L2" the rest of the workspace.',
        examples=["L2"],
    )
    effect: Effect | None = Field(
        None,
        description='Narrows the rule to an effect class: "read", "idempotent", "keyed", "checked" or "irreversible". '
        "A rule allows an irreversible call only if it names this effect or the tool's full name.",
        examples=["checked"],
    )
    risk: Risk | None = Field(
        None,
        description='Narrows the rule to a risk: "low" (reads; one edit in L2), "medium" (several edits, L1, what may '
        'be repeated), "high".',
        examples=["low"],
    )
    agent: Text | None = Field(
        None, description="Narrows the rule to agents by a glob over their names.", examples=["file_manager"]
    )
    mandate: Text | None = Field(
        None, description="Narrows the rule to mandates by a glob over their ids.", examples=["docs-*"]
    )
    category: Text | None = Field(
        None,
        description='Narrows the rule to a category of tools by a glob, as `kairos-mcp tools list` shows it: "files", '
        '"http", or "mcp:NAME" for all tools of a server. Tools may then be left out.',
        examples=["mcp:github"],
    )
    argv: list[str] | None = Field(
        None,
        description="Narrows the rule to commands (run_command, so tools may be left out) by a glob for each "
        'argument, the program first; a last "..." matches any further arguments. To allow, a program\'s bare name '
        'matches only a program outside the workspace; for one inside, write its path, as "./.venv/bin/pytest". To '
        'ask or deny, a name matches the last part of any path too. An interpreter bypasses a deny rule: sh -c "rm x" '
        "is not rm.",
        examples=[["pytest", "..."]],
    )

    @model_validator(mode="after")
    def _check_command(self) -> Self:
        """Refuse a pattern that no command could match, and a rule that says neither tools, a category nor commands."""
        if self.argv is not None:
            self.tools = self.tools or RUN_COMMAND.name
            if (problem := check_pattern(self.argv)) is not None:
                raise PydanticCustomError("argv", "argv: {problem}", {"problem": problem})
        elif not self.tools and self.category is not None:
            self.tools = "*"
        elif not self.tools:
            raise PydanticCustomError("missing", "a rule needs `tools`, `category` or `argv`")
        return self

    @model_validator(mode="after")
    def _check_protected_scopes(self) -> Self:
        """Refuse a rule that would allow what no rule can: writing the server's own files."""
        verdict = _VERDICTS.get(self.verdict, self.verdict)
        if self.flow is not None and self.verdict not in ("allow", "auto"):
            raise PydanticCustomError("flow", "`flow` belongs to a rule that allows")
        if self.scope == "L0" and verdict != "deny":
            raise PydanticCustomError("core", "scope L0 is never written; a rule on it can only deny")
        if self.scope == "L1" and verdict == "allow":
            raise PydanticCustomError("instructions", "scope L1 always asks; a rule on it can ask or deny")
        return self

    def to_rule(self) -> GateRule:
        """Return the rule."""
        given = self.model_dump(exclude={"verdict", "paths", "argv", "flow"})
        if self.verdict == "clean" or self.flow == "off":
            given["flow"] = "clean" if self.verdict == "clean" else "unwatched"
        paths, argv = tuple(self.paths or ()), tuple(self.argv or ())
        return GateRule(verdict=_VERDICTS.get(self.verdict, self.verdict), paths=paths, argv=argv, **given)


_Names = Annotated[
    list[Text],
    Field(
        min_length=1,
        description="Whose: names of principals (of tokens, or oauth:ISSUER|SUBJECT), or globs over them. Each of them "
        "may use these amounts; with `group` all of them together.",
        examples=[["anna", "team-*"]],
    ),
]
_DAY_FIELDS: dict[str, Any] = {
    unit.name: (
        (int if unit.scale == 1 else float) | None,
        Field(None, ge=0, allow_inf_nan=False, description=unit.explained, examples=[unit.example * 5]),
    )
    for unit in DAY_UNITS
}


class _DayBudgetTable(StrictTable):
    """What a table `[[day_budget]]` says besides its limits."""

    principals: _Names
    group: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")] | None = Field(
        None,
        description="A name for them as a group: they share one sum, beside what each of them may use.",
        examples=["team-red"],
    )

    def to_budget(self) -> DayBudget:
        """Return the budget."""
        given = self.model_dump(exclude={"principals", "group"}, exclude_none=True)
        return DayBudget(tuple(self.principals), UNLIMITED._replace(**limits_from_json(given)), self.group)


DayBudgetTable: type[_DayBudgetTable] = create_model("DayBudgetTable", __base__=_DayBudgetTable, **_DAY_FIELDS)
"""The keys of `[[day_budget]]`: a limit for each unit that counts on a day."""

REMOTE_KEYS = ("url", "headers")  # of a server that is not started by a command


class ServerTable(StrictTable):
    """The keys of `[servers.NAME]`."""

    command: Text | None = Field(
        None,
        description="The program, started when it is first needed. `${workspace}` is the path of the run's workspace.",
        examples=["npx"],
    )
    args: list[str] | None = Field(
        None,
        description="Its arguments.",
        examples=[["-y", "@modelcontextprotocol/server-filesystem", "${workspace}"]],
    )
    env: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], str] | None = Field(
        None,
        description="The server's environment, besides PATH, HOME, the language, the time zone, and the certificates "
        "and proxies of the network (SSL_CERT_FILE, NODE_EXTRA_CA_CERTS, HTTPS_PROXY and the like; no proxy with a "
        "password). Kairos passes on no other variables of its own. "
        'A value may name the place of a secret: "env:NAME", "file:PATH" or '
        '"keyring:SERVICE/NAME"; within a text "${env:NAME}".',
        examples=[{"LOG_LEVEL": "warn"}],
    )
    cwd: Text | None = Field(
        None,
        description="The folder that the server starts in, relative to this file. Without it: the workspace.",
        examples=["${workspace}"],
    )
    sandbox: bool = Field(
        True,
        description="Whether the server runs in bubblewrap. There it can read what programs can (command_reads), "
        "write the workspace except .git, and use the machine's network, including its loopback and abstract Unix "
        "sockets. It has its own caches of npx, uvx and the like, so its first start downloads; they are in "
        "server-caches of the state folder, and you may delete them. In a workspace it is paused between its calls: "
        "its timers and windows stop, and it keeps its locks. With false it can do whatever you can, and is never "
        "paused.",
    )
    effects: dict[Text, DeclaredEffect] | None = Field(
        None,
        description='The effects of its tools, by globs over its own names: "read", "idempotent" (may be repeated), '
        '"keyed" (carried out once for the key in its `_meta`) or "irreversible". Other tools are irreversible. If the '
        "server itself states a stronger effect for a tool, only the tool's full name here overrides that.",
        examples=[{"read_*": "read", "list_*": "read", "save_*": "idempotent"}],
    )
    reaches: dict[Text, Reach] | Reach | None = Field(
        None,
        description="How far what its tools take along can get, by globs over its own names, or one word for all: "
        '"inside" (nothing leaves), "service" (to this server, where only those read whom you trust) or "outside" (the '
        "arguments say where, or others can read it). Where nothing is stated, it counts as outside. If the server "
        "itself says that a tool reaches the open world, only the tool's full name here overrides that.",
        examples=[{"fetch": "outside", "list_*": "service"}],
    )
    trusted: dict[Text, bool] | bool | None = Field(
        None,
        description="Whether nobody else wrote what its tools give, by globs or for all: it may then say where a call "
        "goes. False where nothing is stated.",
        examples=[False],
    )
    private: dict[Text, bool] | bool | None = Field(
        None,
        description="Whether what its tools give may not leave without a question, by globs or for all. True where "
        "nothing is stated.",
        examples=[False],
    )
    content: dict[Text, list[Text]] | None = Field(
        None,
        description="Which arguments of its tools are text that goes along, and say neither where nor which, by globs; "
        "beside those with names like body, subject or title.",
        examples=[{"post_note": ["memo"]}],
    )
    tools: list[Text] | None = Field(
        None, description="Which of its tools are taken, by globs over its own names.", examples=[["*"]]
    )
    timeout_s: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] = Field(
        60, description="The most seconds for a call of a tool."
    )
    url: Annotated[str, Field(pattern=r"^https?://[^\s/?#@]+[^\s#]*$")] | None = Field(
        None,
        description="Its address.",
        examples=["https://mcp.example.com/mcp"],
    )
    key_life_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        KEY_LIFE_S, description="How many seconds it keeps the key of a keyed call; later a person is asked."
    )
    headers: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")], str] | None = Field(
        None,
        description="Headers of each request. Headers from Kairos's own callers are never passed on.",
        examples=[{"Authorization": "Bearer ${env:ISSUES_TOKEN}"}],
    )

    @model_validator(mode="after")
    def _is_one_way(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise PydanticCustomError("way", "give a command, or a url")
        if self.url is not None and (self.args or self.env or self.cwd):
            raise PydanticCustomError("way", "args, env and cwd belong to a command")
        if self.command is not None and self.headers:
            raise PydanticCustomError("way", "headers belong to a url")
        return self

    def to_setting(self, name: str) -> ServerSetting:
        """Return the setting of a server with this name."""
        return ServerSetting(
            name,
            (self.command, *(self.args or ())) if self.command is not None else (),
            self.url,
            tuple((self.env or {}).items()),
            tuple((self.headers or {}).items()),
            self.cwd,
            self.sandbox,
            tuple((self.effects or {}).items()),
            tuple(self.tools) if self.tools is not None else ("*",),
            self.timeout_s,
            _by_glob(self.reaches),
            _by_glob(self.trusted),
            _by_glob(self.private),
            self.key_life_s,
            tuple((glob, tuple(names)) for glob, names in (self.content or {}).items()),
        )


def _by_glob(stated: dict[str, _T] | _T | None) -> tuple[tuple[str, _T], ...]:
    """Return what is stated by globs; one value is for all names."""
    if stated is None:
        return ()
    return tuple(stated.items()) if isinstance(stated, dict) else (("*", stated),)


class FlowTable(StrictTable):
    """The keys of `[flow]`."""

    mode: FlowMode = Field(
        "ask",
        description='What becomes of a call with a finding: a person is asked ("ask"), it is not made ("deny"), or '
        'nobody looks ("off").',
    )
    wish: bool = Field(
        True,
        description="Whether a call that changes something is also asked about if nothing in it was said by you, once "
        "texts of others were read.",
    )
    hosts: list[Annotated[Text, AfterValidator(parse_host_rule)]] = Field(
        default_factory=list,
        description="Hosts that are trusted with words of a model's own, as http_hosts are; not with private ones.",
        examples=[["docs.python.org", "*.pypi.org"]],
    )
    foreign: list[Text] = Field(
        list(FOREIGN_FILES),
        description="Files of the workspace that others wrote, by globs: what they say is no word of yours.",
    )

    def to_setting(self) -> FlowSetting:
        """Return the setting."""
        return FlowSetting(self.mode, self.wish, tuple(self.hosts), tuple(self.foreign))  # type: ignore[arg-type]


_SecureUrl = Annotated[
    str, Field(pattern=r"^(https://[^\s/?#@]+|http://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?)(/[^\s?#]*)?$")
]
_Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Signatures by a key pair: with a shared secret whoever verifies a token could make one."""


class ClientTable(StrictTable):
    """The keys of `[clients.NAME]`."""

    lines: int = Field(
        3, ge=3, le=1_000, description="How many lines of a message it shows, in the smallest window that you use."
    )
    width: int = Field(54, ge=40, le=1_000, description="How many columns of each line it shows.")
    url: bool = Field(
        False,
        description="Whether its user can open a link out of a dialog and come back. Some declare it and fail at it.",
    )


class OAuthTable(StrictTable):
    """The keys of `[oauth]`."""

    issuer: _SecureUrl = Field(
        description="Who issues the tokens: exactly the claim iss.", examples=["https://login.example.com/"]
    )
    audience: Text = Field(
        description="For whom the tokens are issued: the claim aud. Use it for this server only, else tokens for "
        "other servers work here too.",
        examples=["https://kairos.example.com/mcp"],
    )
    jwks_uri: _SecureUrl = Field(
        description="Where the issuer publishes its keys. Kairos fetches them at the first token, every five minutes, "
        "and when a token names an unknown key.",
        examples=["https://login.example.com/.well-known/jwks.json"],
    )
    algorithms: Annotated[list[_Algorithm], Field(min_length=1)] = Field(
        description='The algorithms that may sign the tokens: "RS256" and the like of RS, PS and ES, or "EdDSA".',
        examples=[["RS256"]],
    )
    resource: Annotated[str, Field(pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$")] | None = Field(
        None,
        description="The address under which clients know this server, if that is not its audience. Its host is served "
        "without --allow-host.",
        examples=["https://kairos.example.com/mcp"],
    )

    client_id: Text | None = Field(
        None,
        description="As whom the page for operators (/observe/) signs in: a public client of the authorization server, "
        "whose address to return to is that of the page. Without it the page asks for a token.",
        examples=["kairos-operators"],
    )
    authorize_uri: _SecureUrl | None = Field(
        None,
        description="With client_id: where a person signs in.",
        examples=["https://login.example.com/authorize"],
    )
    token_uri: _SecureUrl | None = Field(
        None,
        description="With client_id: where this server exchanges the code for a token.",
        examples=["https://login.example.com/token"],
    )

    @model_validator(mode="after")
    def _is_whole_for_the_page(self) -> Self:
        if len({each is None for each in (self.client_id, self.authorize_uri, self.token_uri)}) > 1:
            raise PydanticCustomError("client_id", "client_id, authorize_uri and token_uri are given together")
        return self

    @model_validator(mode="after")
    def _has_address(self) -> Self:
        if self.resource is None and not self.audience.startswith(("https://", "http://")):
            raise PydanticCustomError("resource", "give `resource` too, since the audience is not an address")
        return self

    def to_setting(self) -> OAuthSetting:
        """Return the setting."""
        resource = self.resource or self.audience
        page = (self.client_id, self.authorize_uri, self.token_uri)
        return OAuthSetting(self.issuer, self.audience, self.jwks_uri, tuple(self.algorithms), resource, *page)
