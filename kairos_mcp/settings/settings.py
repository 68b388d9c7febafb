"""The settings: one frozen value, each of whose fields is declared once, and where each part of it comes from.

`schema.py` makes of these declarations what validates a file and variables, `explained.py` the file that `init` writes
and the table in docs/settings.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from kairos_mcp.core.errors import ConfigError
from kairos_mcp.core.limits import Limits
from kairos_mcp.core.quick_dataclass import dataclass
from kairos_mcp.settings.key import key
from kairos_mcp.settings.table_values import (
    ClientSetting,
    DayBudget,
    FlowSetting,
    GateRule,
    NotifySetting,
    OAuthSetting,
    ServerSetting,
)

if TYPE_CHECKING:  # read by most starts, and filled in by few
    from kairos_mcp.core.decision_rights import ApprovalsSetting
    from kairos_mcp.core.routes import RouteName
    from kairos_mcp.core.steps import DialectName
    from kairos_mcp.core.urls import HostRule
    from kairos_mcp.settings.http_definition import HttpDefinition

Durability = Literal["full", "process"]
Origin = Literal["flag", "environment", "file", "default"]
PromptForm = Literal["auto", "full", "short"]
CommandMode = Literal["sandboxed", "bare", "off"]
StageMode = Literal["auto"] | bool

DEFAULT_CAPS = Limits(rounds=100)
DEFAULT_DAY = Limits(model_calls=10_000)


@dataclass(frozen=True, slots=True)
class Flags:
    """The flags on the command line; None or an empty tuple where one was not given."""

    home: str | None = None
    workspaces: tuple[str, ...] = ()
    config: str | None = None
    tools: str | None = None
    place: str | None = None
    read_only: bool = False


_AMOUNT: Mapping[str, Any] = {"ge": 0, "le": 1e9, "allow_inf_nan": False}
_PATH_GLOB: Mapping[str, Any] = {"pattern": r"^[^/\\][^\\]*$", "max_length": 256}  # from the root, or a bare name


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, in the order in which they are shown. A field without a `key` is found, not set."""

    home: Path
    """The state folder."""
    config_dirs: tuple[Path, ...]
    """Folders of prompts and agents; the last one is searched first."""
    workspaces: tuple[Path, ...] = key(
        (),
        "The only folders that file tools may touch; relative to this file. (KAIROS_WORKSPACE, separated as in PATH.)",
        example=["/home/me/project"],
        compared=False,
    )
    durability: Durability = key(
        "full",
        'What survives: "full" a loss of power, "process" the death of the program, with less waiting for the disk.',
        compared=False,
    )
    store: str | None = key(
        None,
        "The PostgreSQL database that keeps the rows in place of a file in the state folder, for servers on several "
        "machines; it needs kairos-loop[postgres], and `kairos-mcp store migrate` once. docs/operations.md says what "
        "changes with it.",
        example="postgresql://kairos@db.example.com/kairos",
        pattern=r"^postgres(ql)?://\S*$",
        max_length=2_000,
        check="no_password",
        form='the address of a PostgreSQL database, as "postgresql://kairos@db.example.com/kairos"',
    )
    store_password: str | None = key(
        None,
        'Where the database\'s password is kept, if it needs one: "env:NAME", "file:PATH" or "keyring:SERVICE/NAME"; '
        "libpq's own PGPASSFILE and PGPASSWORD count as well. A password itself is refused here.",
        example="env:KAIROS_DB_PASSWORD",
        check="reference",
    )
    place: str | None = key(
        None,
        "A name for the machines that have these workspaces, for servers on several machines with one database. A run "
        "then goes on only at the place where it began. Without a place, Kairos takes the same path on all machines "
        "for the same folder.",
        example="storage-1",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        form="a name of letters, digits, dots, - and _",
        compared=False,
    )
    route: RouteName = key(
        "auto",
        'Where completions come from if a call does not say: "scripted" (a script), "provider" (the model below), '
        '"sampling" (the host\'s own model), "caller" (the calling model), or "auto": the first of these that is '
        "available.",
        compared=False,
    )
    script: Path | None = key(
        None,
        "A script of completions, JSON Lines, that answers in a model's place; relative to this file.",
        example="script.jsonl",
    )
    model: str | None = key(
        None,
        'The model that a provider completes with, as "openai:gpt-5" or "anthropic:claude-sonnet-4-5". Its key is read '
        "from the provider's own variable, as OPENAI_API_KEY or ANTHROPIC_API_KEY, never in a file.",
        example="openai:gpt-5",
        pattern=r"^[a-z][a-z0-9_./-]*:\S+$",
        form='a provider and its model, as "openai:gpt-5"',
    )
    model_key: str | None = key(
        None,
        'Where the provider\'s key is kept, if not in that variable: "env:NAME", "file:PATH" or '
        '"keyring:SERVICE/NAME" (the last needs kairos-loop[keyring]). A key itself is refused here.',
        example="keyring:kairos/openai",
        check="reference",
    )
    base_url: str | None = key(
        None,
        "The address for the model's requests in place of the provider's own: any server with the same API, as "
        "llama.cpp, Ollama, vLLM or a gateway with openai:NAME. It gets the key in the provider's variable, or none.",
        example="http://127.0.0.1:8080/v1",
        pattern=r"^https?://[^\s/?#@]+[^\s?#]*$",
        form='an address without a query, as "http://127.0.0.1:8080/v1"',
    )
    dialect: DialectName = key(
        "native",
        'How tools are offered to that model: "native" (the provider\'s own tool calls) or "text" (the prompt lists '
        "them and a reply is a JSON object), which small local models do better.",
    )
    price_input: float | None = key(
        None,
        "Dollars for a million input tokens, if the price table that comes with Kairos lacks the model or the "
        "address. Set it together with price_output; both override that table. A run limited in dollars needs a "
        "price. A model on this machine (at a loopback address) costs nothing, unless both are set.",
        example=0.25,
        **_AMOUNT,
    )
    price_output: float | None = key(None, "Dollars for a million output tokens.", example=2.0, **_AMOUNT)
    sampling: Literal["fallback", "prefer"] = key(
        "fallback",
        'Whether "auto" takes the host\'s own model only without a provider ("fallback"), or first ("prefer").',
    )
    silent_clients: tuple[str, ...] = key(
        ("copilot-cli *",),
        "Clients that declare sampling and may never answer it, by globs over their name and version, as they state "
        'them. "auto" skips their model, so that no run waits forever; route "sampling" still asks it. copilot-cli is '
        "silent when it is started with -p, which Kairos can't see.",
        in_variable=False,
    )
    tools: str = key(
        "all",
        'Which tools a host sees: "lean", "core", "all", or names separated by commas.',
        compared=False,
    )
    read_only: bool = key(
        False,
        "Whether this server only looks: runs get no tool that does more than read, whatever they name; nothing can be "
        "approved, and what would ask a person is denied; ooda_run, ooda_act, mandate_save and registry_register are "
        "left out. (`serve --read-only` does the same.)",
    )
    default_rounds: int = key(
        5,
        "Rounds of a planner run that asks for none: a round is one model call and the tools that it asked for.",
        ge=1,
        le=10_000,
    )
    context_tokens: int = key(
        100_000,
        "Tokens that fit into a model's context, if the route does not say; a longer conversation is shortened first.",
        ge=2_000,
        le=100_000_000,
    )
    prompts: PromptForm = key(
        "auto",
        'Which prompts a planner run gets: "full", "short", or "auto". Short prompts are for small models: a few '
        "sentences, the names of the workspace's files, some lines with words of the goal, fewer tools if none are "
        'named, and the goal again after results; an answer without having read any file is sent back once. "auto" is '
        "short for a provider's model whose name states at most 4 billion parameters, as "
        '"openai:qwen2.5-coder:1.5b", or with context_tokens up to 16,000; it then uses the dialect "text", unless '
        "`dialect` is set.",
    )
    read_bytes: int = key(
        2 * 1024 * 1024, "The most bytes of a file that a tool reads in one call.", ge=1_024, le=256 * 1024 * 1024
    )
    shown_chars: int = key(
        12_000,
        "The most characters of a tool's output that a model gets at once. All of it is stored; the model can read it "
        "by its ref.",
        ge=500,
        le=1_000_000,
    )
    time_zone: str = key(
        "UTC",
        'The time zone in which the days of [day] begin and end: a name of the IANA database, as "Europe/Berlin".',
    )
    approvals: ApprovalsSetting = key(
        "ask",
        'Who decides when the gate asks: "ask" (a person, in a dialog of their client or by `kairos-mcp approve`), '
        '"host" (also whoever calls run_continue, which may be a model), "person" (by the command alone, for clients '
        "that accept dialogs by themselves).",
    )
    approval_hours: int = key(
        72,
        "Hours that a person has to decide. Then the run is paused; once resumed, it asks again about the state of "
        "that moment.",
        ge=1,
        le=10_000,
    )
    commands: CommandMode = key(
        "sandboxed",
        'Whether the tool run_command is available: "sandboxed" (in bubblewrap, without network), "off", or "bare": '
        "without a sandbox, where a program can do whatever this server can. A call asks a person unless a rule of the "
        "gate decides.",
    )
    command_reads: tuple[Path, ...] = key(
        (),
        "What programs and servers in a sandbox may also read. They always see the system's programs and libraries, "
        "/opt, the usual toolchains and dependency caches of the home folder, and the workspace except files that are "
        'not read without asking, like .env. Name a folder where other tools are installed, as "~/miniconda3", or '
        "such a file; relative to this file. A run can ask for more for one call. (KAIROS_COMMAND_READS, separated as "
        "in PATH.)",
        example=["~/miniconda3"],
    )
    command_writes: tuple[str, ...] = key(
        (),
        "Instructions to agents and hosts (L1) that programs and servers in a sandbox may write nevertheless: a name "
        "at any depth, or a glob from the workspace's root. A file in a folder of instructions needs such a glob.",
        example=["docs/AGENTS.md", ".github/workflows/*"],
        form='a path from the root of the workspace, or a name, as "docs/AGENTS.md"',
        in_variable=False,
        **_PATH_GLOB,
    )
    stage: StageMode = key(
        False,
        "Whether a run that may change something works in a stage: it edits and runs programs unasked on a "
        "private layer over the workspace, and a person decides once about one diff. true: such a run is refused where "
        'there can be no stage; "auto": it then works as without one, and its result says why. A call of planner_run '
        "or team_run can say otherwise. docs/stage.md.",
    )
    stage_bytes: int = key(2 << 30, "The most bytes that a run's stage may hold.", ge=1 << 20, le=1 << 50)
    stage_days: int = key(
        7, "Days to keep the stage of an ended run if some of its changes were not applied.", ge=0, le=10_000
    )
    skills: tuple[Path, ...] = key(
        (),
        "More folders of skills that a run may read (each skill is a folder with a SKILL.md); relative to this file. "
        "Runs also have your own in config/skills of the state folder. Of two with the same name the later one "
        "counts. A run that writes there always asks. (KAIROS_SKILLS, separated as in PATH.)",
        example=["~/.claude/skills"],
    )
    claude_agents: bool = key(
        False,
        "Whether runs can also use the agents that a workspace has for Claude Code in .claude/agents, as "
        '"claude:NAME". An agent gets those of its tools that have a counterpart here (Read, Grep, Glob, Edit, '
        "MultiEdit, Write, Bash, WebFetch); if its file names none, it gets those that only read. Anybody who can "
        "write in the workspace can change their prompts.",
    )
    instructions: tuple[str, ...] = key(
        (),
        "Further files of the workspace that instruct agents, or that a host, an editor, a shell or git reads by "
        "itself (L1), besides those that docs/instructions.md lists (AGENTS.md, .mcp.json, .vscode, .envrc, "
        ".pre-commit-config.yaml and many more): a name at any depth, or a glob from the workspace's root. A run that "
        "writes there always asks, and its programs can't write there.",
        example=["CONVENTIONS.md", "Makefile", "docs/prompts/*"],
        form='a path from the root of the workspace, or a name, as "docs/prompts/*"',
        in_variable=False,
        **_PATH_GLOB,
    )
    keep_days: int | None = key(
        None,
        "Days that an ended run is kept; then servers that start runs remove it, and so does `runs --prune`. Runs "
        "that wait, or that a kept run continues, stay. Without this setting, runs are kept forever.",
        example=90,
        ge=1,
        le=100_000,
        compared=False,
    )
    http_fetch: bool = key(
        False,
        "Whether the tool http_fetch is available. It reaches only public hosts; GET and HEAD of http_hosts run at "
        "once, everything else asks a person.",
    )
    http_hosts: tuple[HostRule, ...] = key(
        (),
        "Hosts that http_fetch may read without a question, and that a redirect may lead to: a name, a wildcard below "
        "one, with a port if it is not 80 or 443.",
        example=["docs.python.org", "*.example.org", "api.example.com:8443"],
        check="host",
        in_variable=False,
    )
    private_hosts: tuple[HostRule, ...] = key(
        (),
        "Hosts of this machine or its network that http_fetch and HTTP tools may reach besides public ones, each by "
        "its name or address in URLs.",
        example=["127.0.0.1:8080", "localhost:11434"],
        check="single_host",
        in_variable=False,
    )
    rate_limit: float = key(
        100.0,
        "Requests a second that each principal may send to a server over HTTP once it has used up its burst. Further "
        "ones are refused with 429 and the time to wait.",
        gt=0,
        le=1e6,
        allow_inf_nan=False,
    )
    rate_burst: int = key(300, "Requests that each principal may send at once.", ge=1, le=1_000_000)
    max_sessions: int = key(
        256,
        "The most sessions of a server over HTTP, of all principals together; clients of protocol 2026-07-28 need "
        "none. A new session beyond that ends the longest idle one of the principal that has the most.",
        ge=1,
        le=100_000,
    )
    principal_sessions: int | None = key(
        None,
        "The most sessions of each principal; a new one beyond that ends its longest idle one. Without this setting "
        "one principal may have all sessions, as long as nobody else needs one.",
        example=32,
        ge=1,
        le=100_000,
    )
    trusted_proxies: tuple[str, ...] = key(
        (),
        "Addresses and networks of proxies in front of a server over HTTP. Each of their connections counts as "
        "another client. Until a client is authenticated, it counts as the address that the proxy names in "
        "X-Forwarded-For.",
        example=["10.0.0.0/8"],
        check="network",
        in_variable=False,
    )
    shutdown_s: float = key(
        1.0,
        "Seconds that a server over HTTP, when it is stopped, gives to the calls that it is answering. Calls that "
        "wait for a run are answered at once.",
        ge=0,
        le=3_600,
        allow_inf_nan=False,
    )
    log_format: Literal["text", "json"] = key(
        "text",
        'What a server writes to stderr, a line for each record: "text" (time, level, logger, message; the lines of a '
        'traceback follow as \\n) or "json" (an object with at, level, logger, message and perhaps traceback).',
    )
    telemetry: bool = key(
        False,
        "Whether OpenTelemetry spans and metrics are sent by OTLP, to the address in the standard variables (OTEL_*). "
        "A server over HTTP also has metrics at /metrics. Needs kairos-loop[telemetry]; docs/telemetry.md has all "
        "names.",
    )
    telemetry_content: bool = key(
        False,
        "Whether spans contain content too: goals, prompts and answers of models, arguments and results of calls, "
        "with known secrets masked.",
    )
    limits: Limits = key(DEFAULT_CAPS, "What a run may use at most, whatever its caller asks for.")
    day: Limits = key(
        DEFAULT_DAY,
        "What all runs of one principal may use together on a day. A run that meets such a limit is paused until the "
        "next day begins, and then goes on.",
    )
    day_budget: tuple[DayBudget, ...] = key(
        (),
        "What principals may use on a day, each for themselves, in place of [day]: of several tables the first one "
        "counts that names them. What a table does not limit, [day] does. A table with `group` limits what its "
        "principals use together, beside that.",
        in_variable=False,
    )
    gate: tuple[GateRule, ...] = key(
        (),
        "Which calls may be made. Deny rules are tried first and always win; then the first rule that matches "
        "decides. Without a rule, a tool that only reads runs (except http_fetch), and everything else asks. No rule "
        "lets a run write the server's own files (L0). Writing instructions to agents (L1) always asks.",
        in_variable=False,
    )
    flow: FlowSetting = key(
        FlowSetting(),
        "What is done about what a call takes along, where it reaches outside (docs/flow.md). A person is asked where "
        "it takes words of private files or answers along, or, once texts of others were read, is put together of "
        "words that are not known to be open.",
        in_variable=False,
    )
    http_tools: tuple[HttpDefinition, ...] = key(
        (),
        "Your own tools, each one HTTP request. What no argument fills in is fixed here.",
        in_variable=False,
    )
    servers: tuple[ServerSetting, ...] = key(
        (),
        "Servers of others whose tools runs may use, each by a name of its own: its tools are called files__TOOL. What "
        "it lists when it is met first is taken as approved; what is new or changed later waits for a person.",
        in_variable=False,
    )
    clients: tuple[ClientSetting, ...] = key(
        (),
        "What a host shows of a dialog, by the name with which it introduces itself (`kairos-mcp show` names it): a "
        "change can be approved only in a dialog that shows it whole. It is needed for a host that shows more than is "
        "known of it (docs/hosts.md).",
        in_variable=False,
        compared=False,
    )
    notify: tuple[NotifySetting, ...] = key(
        (),
        "Where you are notified of what waits for you, ends or is stopped, while nobody looks. Simultaneous events are "
        "one notification, and each run is reported at most once a minute. docs/how-to/away.md.",
        in_variable=False,
        compared=False,
    )
    oauth: OAuthSetting | None = key(
        None,
        "OAuth access tokens that are accepted over HTTP beside those of `kairos-mcp token`: JWTs of one authorization "
        "server. Their scopes are run, approve, admin and observe (docs/http.md). With this table no request is served "
        "without a token.",
        in_variable=False,
    )
    config_file: Path | None = None
    """The settings file; None: there was none."""
    config_hash: str | None = None
    """Of the settings file as it was read."""
    origins: Mapping[str, Origin] = field(default_factory=lambda: MappingProxyType({}))
    """Where each setting comes from, limits one by one (`limits.usd`)."""

    def day_of(self, principal: str) -> Limits:
        """Return what this principal may use on a day."""
        singly = (each.caps for each in self.day_budget if each.group is None and each.holds_for(principal))
        own = next(singly, None)
        if own is None:
            return self.day
        return Limits(*(usual if cap is None else cap for cap, usual in zip(own, self.day, strict=True)))

    def group_caps_of(self, principal: str) -> dict[str, Limits]:
        """Return how much the groups of this principal may use together on a day, by the name of their accounts."""
        groups = (each for each in self.day_budget if each.group is not None and each.holds_for(principal))
        return {each.account_name: each.caps for each in groups}

    @property
    def limits_dollars_of_days(self) -> bool:
        """Whether anybody's day is limited in dollars."""
        return any(caps.nano_usd is not None for caps in (self.day, *(each.caps for each in self.day_budget)))

    def read_prompt(self, name: str) -> str:
        """Return the text of `prompts/NAME.md`, the user's own if there is one, else ours. Raises ConfigError."""
        if not re.fullmatch(r"[a-z][a-z0-9_-]{0,63}", name):
            raise ConfigError(
                f"{name[:80]!r} is not a valid name of a prompt.", "Use lower-case letters, digits, - and _."
            )
        from kairos_mcp.core.text import decode_text  # few starts read one

        for folder in reversed(self.config_dirs):
            file = folder / "prompts" / f"{name}.md"
            try:
                return decode_text(file.read_bytes())
            except FileNotFoundError:
                continue
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"The prompt {file} can't be read: {error}.", "Repair or remove it.") from error
        raise ConfigError(f"There is no prompt {name!r}.", f"Put it at {self.config_dirs[-1] / 'prompts'}/{name}.md.")


def find_changed_file(settings: Settings) -> Path | None:
    """Return the settings file if it is not what it was when these settings were read, one that is new included."""
    file = settings.config_file or settings.home / "kairos.toml"
    return file if hash_file(file) != settings.config_hash else None


def hash_file(file: Path) -> str | None:
    """Return the SHA-256 of a file; None where it can't be read."""
    try:
        return sha256(file.read_bytes()).hexdigest()
    except OSError:
        return None
