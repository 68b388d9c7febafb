"""The settings: one frozen value, and where each part of it comes from.

The defaults are defined here alone; `config/kairos.toml` shows and explains them, and a test keeps the two equal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from kairos_mcp.core.errors import ConfigError
from kairos_mcp.core.limits import CAPS, DAY_CAPS, Limits, limits_to_json

if TYPE_CHECKING:  # read by most starts, and filled in by few
    from kairos_mcp.core.decision_rights import ApprovalsSetting
    from kairos_mcp.core.effects import Effect
    from kairos_mcp.core.paths import Risk, Scope
    from kairos_mcp.core.routes import RouteName
    from kairos_mcp.core.steps import DialectName
    from kairos_mcp.core.urls import HostRule
    from kairos_mcp.settings.http_definition import HttpDefinition

GateVerdict = Literal["allow", "ask", "deny"]
Durability = Literal["full", "process"]
DeclaredEffect = Literal["read", "idempotent", "irreversible"]  # of a foreign tool: none has a probe
Origin = Literal["flag", "environment", "file", "default"]
PromptForm = Literal["auto", "full", "short"]
CommandMode = Literal["sandboxed", "bare", "off"]

DEFAULT_CAPS = Limits(rounds=100)
DEFAULT_DAY = Limits(model_calls=10_000)


@dataclass(frozen=True, slots=True)
class GateRule:
    """One rule of the gate; gate.py defines how rules are applied.

    `tools`, `category`, `agent` and `mandate` are globs over names, `paths` globs over the paths that a call names,
    `argv` the pattern of a command (core/command_patterns.py). What is not given matches everything.
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


@dataclass(frozen=True, slots=True)
class ServerSetting:
    """A downstream MCP server: a program to start (`command`, with its arguments), or an address (`url`).

    Values of `env` and `headers` may refer to secrets: `env:NAME`, `file:PATH`, within a text `${env:NAME}`.
    `${workspace}` in the command, its environment and `cwd` is the workspace's path. `effects`: effect classes by glob
    over the server's own tool names. `tools`: globs of the tools to offer.
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


@dataclass(frozen=True, slots=True)
class OAuthSetting:
    """Which OAuth access tokens (JWT) are accepted over HTTP: of `issuer`, for `audience`, signed by one of
    `algorithms` with a key of `jwks_uri`. `resource`: the address under which clients know this server."""

    issuer: str
    audience: str
    jwks_uri: str
    algorithms: tuple[str, ...]
    resource: str


@dataclass(frozen=True, slots=True)
class Flags:
    """The flags on the command line; None or an empty tuple where one was not given."""

    home: str | None = None
    workspaces: tuple[str, ...] = ()
    config: str | None = None
    tools: str | None = None
    place: str | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings. `origins`: where each comes from, limits one by one (`limits.usd`).

    `store`: the PostgreSQL database that keeps the rows; None: a file of the state folder does. `store_password`: where
    its password is kept. `place`: of the machines that have these workspaces; None: the same path is the same folder.
    `limits`: the most that a caller may ask for; `default_rounds`: for one who asks for nothing. `read_bytes`: the
    largest part of a file that one call reads. `shown_chars`: how much of a tool's output a model is shown; the rest is
    kept under a ref. `config_dirs`: searched for prompts and agents, the last one first. `skills`: further folders of
    skills, which take precedence over ours and the user's. `claude_agents`: agents of `.claude/agents` count too.
    `instructions`: further globs of L1 paths; `command_writes`: those L1 paths that programs may write all the same.
    `config_hash`: of the settings file as it was read. `silent_clients`: globs over the name and version of clients
    whose sampling `auto` leaves out. `rate_limit`, `rate_burst`, `max_sessions`, `principal_sessions`, `shutdown_s`,
    `trusted_proxies`: bounds of a server over HTTP. `log_format`: of a server's stderr. `telemetry`: spans and metrics
    are sent, `telemetry_content`: with what was asked, answered, called and returned.
    """

    home: Path
    config_dirs: tuple[Path, ...]
    workspaces: tuple[Path, ...] = ()
    durability: Durability = "full"
    store: str | None = None
    store_password: str | None = None
    place: str | None = None
    route: RouteName = "auto"
    script: Path | None = None
    tools: str = "all"
    model: str | None = None
    model_key: str | None = None
    base_url: str | None = None
    dialect: DialectName = "native"
    price_input: float | None = None
    price_output: float | None = None
    sampling: Literal["fallback", "prefer"] = "fallback"
    silent_clients: tuple[str, ...] = ("copilot-cli *",)
    default_rounds: int = 5
    context_tokens: int = 100_000
    prompts: PromptForm = "auto"
    read_bytes: int = 2 * 1024 * 1024
    shown_chars: int = 12_000
    time_zone: str = "UTC"
    approvals: ApprovalsSetting = "ask"
    approval_hours: int = 72
    keep_days: int | None = None
    gate: tuple[GateRule, ...] = ()
    http_fetch: bool = False
    http_hosts: tuple[HostRule, ...] = ()
    private_hosts: tuple[HostRule, ...] = ()
    http_tools: tuple[HttpDefinition, ...] = ()
    servers: tuple[ServerSetting, ...] = ()
    commands: CommandMode = "sandboxed"
    command_reads: tuple[Path, ...] = ()
    command_writes: tuple[str, ...] = ()
    skills: tuple[Path, ...] = ()
    claude_agents: bool = False
    instructions: tuple[str, ...] = ()
    rate_limit: float = 100.0
    rate_burst: int = 300
    max_sessions: int = 256
    principal_sessions: int | None = None
    shutdown_s: float = 1.0
    trusted_proxies: tuple[str, ...] = ()
    log_format: Literal["text", "json"] = "text"
    oauth: OAuthSetting | None = None
    telemetry: bool = False
    telemetry_content: bool = False
    limits: Limits = DEFAULT_CAPS
    day: Limits = DEFAULT_DAY
    config_file: Path | None = None
    config_hash: str | None = None
    origins: Mapping[str, Origin] = field(default_factory=lambda: MappingProxyType({}))

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


def current_folder() -> Path:
    """Return the current folder of this process. Raises ConfigError where it was removed."""
    try:
        return Path.cwd().resolve()
    except OSError as error:
        raise ConfigError("The current folder was removed.", "Change to one that exists.") from error


def user_home() -> Path:
    """Return the user's home folder. Raises ConfigError where there is none, as for a user without a name."""
    try:
        return Path.home().resolve()
    except (OSError, RuntimeError) as error:
        raise ConfigError("There is no home folder.", "Set HOME.") from error


def packaged_config() -> Path:
    """Return our own `config/`: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).parent.parent
    inside = package / "_config"
    return inside if inside.is_dir() else package.parent / "config"


def packaged_skills() -> Path:
    """Return our own `skills/`: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).parent.parent
    inside = package / "_skills"
    return inside if inside.is_dir() else package.parent / "skills"


def skill_folders(settings: Settings) -> tuple[Path, ...]:
    """Return the folders of skills: ours, the user's, those in the settings; a later one wins over an earlier one."""
    return (packaged_skills(), *(folder / "skills" for folder in settings.config_dirs[1:]), *settings.skills)


def has_own_agents(settings: Settings) -> bool:
    """Whether there may be agents besides ours: a folder of the user's, or those of a workspace."""
    return settings.claude_agents or (settings.config_dirs[-1] / "agents").is_dir()


def default_value(name: str) -> Any:
    """Return the default of a setting, as the settings file would write it; None where there is none."""
    group, _, leaf = name.partition(".")
    if leaf:
        return limits_to_json({"limits": DEFAULT_CAPS, "day": DEFAULT_DAY}[group])[leaf]
    (found,) = (setting for setting in fields(Settings) if setting.name == name)
    return None if found.default is MISSING else found.default


def variable_name(name: str) -> str:
    """Return the environment variable of a setting: `limits.usd` is KAIROS_LIMITS_USD."""
    return "KAIROS_WORKSPACE" if name == "workspaces" else f"KAIROS_{name.replace('.', '_').upper()}"


TOKEN_VARIABLE = "KAIROS_HTTP_TOKEN"  # read by hosts, from their entries in files of a project
TRUST_VARIABLE = "KAIROS_TRUST_FILE_MODES"  # for a file system that has no owners and modes of its own


def unknown_variables(environ: Mapping[str, str]) -> list[tuple[str, str | None]]:
    """List unknown variables with our prefix, each with a known one of a similar name, or None.

    Every start and doctor warn about them, since one may be misspelled.
    """
    known = {*VARIABLES, "KAIROS_HOME", "KAIROS_CONFIG", TOKEN_VARIABLE, TRUST_VARIABLE}
    unknown = sorted(name for name in environ if name.upper().startswith("KAIROS_") and name not in known)
    if not unknown:
        return []
    from difflib import get_close_matches  # only when needed: the time to start is measured

    near = {name: get_close_matches(name.upper(), sorted(known), n=1, cutoff=0.8) for name in unknown}
    return [(name, near[name][0] if near[name] else None) for name in unknown]


CAP_NAMES = (*(f"limits.{name}" for name in CAPS), *(f"day.{name}" for name in DAY_CAPS))
_NOT_IN_FILE = ("home", "config_dirs", "limits", "day", "config_file", "config_hash", "origins")
SETTINGS = (*(each.name for each in fields(Settings) if each.name not in _NOT_IN_FILE), *CAP_NAMES)
"""Every setting that a file may hold, limits one by one; not `home`, which holds the file."""

FILE_ONLY = frozenset(
    (
        *("command_writes", "gate", "http_hosts", "http_tools", "instructions", "oauth", "private_hosts", "servers"),
        *("silent_clients", "trusted_proxies"),
    )
)
"""Settings that are tables or lists of them, which no variable can hold."""

VARIABLES = frozenset(variable_name(name) for name in SETTINGS if name not in FILE_ONLY)


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
