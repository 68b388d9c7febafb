"""Which values beside the name of a secret are none: nothing, placeholders, references, paths and addresses.

The grammar is closed. What only resembles one of its forms, or goes on behind it, is a value: a person's password may
hold any word, and end or begin with the name of a secret, as in `hunter2secret9`.

    none        = nothing | placeholder | reference | path | address
    nothing     = `***`, `none`, `true`, `string` …: a fixed list
    placeholder = `<WORDS>`, `[WORDS]`, `(WORDS)`, `{name}`, `%s`, `xxxx`, `changeme` …: a fixed list; `your-WORDS`,
                  `insert-WORDS` …; or just what such a secret is called: `password`, `api_key`
    reference   = `$NAME`, `${NAME}`, `${NAME:-DEFAULT}`, `{{ … }}`, `${{ … }}`, `<% … %>`, `$(command)`, `%NAME%`, any
                  number of them with only `- _ : / . @` between; `env:NAME`, `vault:PATH`, `op://…`, `var.name` …
    DEFAULT     = one that is none itself; also of a text in quotes in a template, as in `{{ .x | default "" }}`
    path        = below `~`, `.`, `..` or one of the usual folders at the top, without a part that looks like a key
    address     = `scheme://…` of a known scheme; a password in it is found by itself
    label       = in code and prose alone: words of a fixed list, one of which names a secret: `new_password`
    WORDS       = letters, joined by blanks, `-`, `_`, `.`; never digits
"""

from __future__ import annotations

import re

from kairos_mcp.core.secret_forms import MASK

MAX_VALUE_CHARS = 800  # a longer value is no placeholder and no reference
MAX_LABEL_CHARS = 64
_NAMING_WORDS = (  # that name a secret, or say that something stands for one
    "password passwords passwd passphrase passcode pwd pass secret secrets token tokens key keys apikey credential "
    "credentials cookie cookies placeholder redacted example dummy todo changeme"
)
_OTHER_WORDS = (  # that may stand with them
    "your my our the a an new old current previous another some any insert enter put add set type paste provide "
    "replace change use get here me it this in with of for from to and or by is not confirm confirmation repeat "
    "forgot reset forgotten update create invalid wrong missing incorrect required empty real actual strong random "
    "secure db database user username users root admin api app application access auth authentication client server "
    "service account private public shared signing encryption master session refresh bearer id jwt csrf xsrf oauth "
    "login smtp mail email redis postgres postgresql mysql mongo aws azure google github gitlab slack openai "
    "anthropic docker registry ssl tls ssh webhook bot value field name hash text env"
)
_NAMING = frozenset(_NAMING_WORDS.split())
_LABEL_WORDS = _NAMING | frozenset(_OTHER_WORDS.split())
_NOTHING = re.compile(
    r"[*.?_•-]+|x{3,}(?:-x{3,})*|none|null|nil|~|true|false|yes|no|on|off|undefined|required|optional|string|str|bytes|"
    r"any|secretstr|\.\.\.|[|>][-+0-9]{0,2}|[{\[(]",
    re.IGNORECASE,
)
_WORDS = r"[A-Za-z]+(?:[-_. ]+[A-Za-z]+){0,9}"
_PLACEHOLDER = re.compile(
    r"passwords?|passwd|passphrase|passcode|pwd|pass|secrets?|credentials?|tokens?|keys?|cookies?|"
    r"(?:api|access|auth|client|app|secret|private|session|refresh|bearer)[-_ ]?(?:keys?|secrets?|tokens?)|"
    rf"change[-_ ]?(?:me|it|this)|replace[-_ ]?(?:me|this)|redacted|example|placeholder|value|dummy|todo|fixme|"
    rf"<[ ]?{_WORDS}[ ]?>|\[[ ]?{_WORDS}[ ]?\]|\([ ]?{_WORDS}[ ]?\)|\{{[A-Za-z_.]*\}}|%[sdrvq]|%\([A-Za-z_]+\)s",
    re.IGNORECASE,
)
_ASKING = re.compile(r"(?:your|insert|enter|put|add|provide|replace|paste)(?:[-_ ]|(?<=your))", re.IGNORECASE)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_JOINED_WORDS = re.compile(r"[A-Za-z]+(?:[-_. ]+[A-Za-z]+)*")
_UNIT = (  # `$$NAME` is how a Makefile and Compose write `$NAME`
    r"\{\{[^{}]*\}\}|<%[^%]*%>|%[A-Za-z_]\w*%|\$?(?:\$\{\{[^{}]*\}\}|\$\{[^{}]*\}|"
    r"\$\((?!\s*(?:echo|printf|or|if)\b)(?:[^()]|\([^()]*\))*+(?:\)|\Z)|"
    r"\$[A-Z_][A-Z0-9_]*(?!\w)|\$\w(?!\w)|\$(?:env:)?[A-Za-z_]+(?!\w))"
)
_UNITS = re.compile(_UNIT)
_REFERENCES = re.compile(rf"(?:(?>{_UNIT})[-_:/.@ ]*+)++", re.DOTALL)  # matched in one way alone
_DEFAULT = re.compile(  # `${X:-VALUE}`, `${X:VALUE}`, `${X-VALUE}`; but `${env:X}` is a reference
    r"\$\{(?!(?:env|file|keyring|vault|secret|ssm|resolve):)(?:[\w.-]+:(?!\?)[-=+]?|\w+[-=+])([^{}]*)\}"
)
_CUT = re.compile(r"-?\d{1,3}(?::-?\d{1,3})?")  # of `${X:0:5}`
_ALTERNATIVE = re.compile(r"\|\|?|\?\??:?|\bor\b|\belse\b|\bif\b")  # in a template
_GIVES_VALUE = re.compile(r"[( ]*(?:[\"']|(?:default|d|coalesce|ternary|or|print|printf|quote|b64enc)\b)")
_QUOTED = re.compile(r"\"([^\"]*)\"|'([^']*)'")
_REFERENCE = re.compile(
    r"env:[A-Za-z_]\w*|file:[\w./~+-]*/[\w./+-]+|(?:keyring|vault|secret|ssm|gcp|azure|aws):[\w.-]*/[\w./#@+-]+|"
    r"op://\S+|arn:aws[\w-]*:[\w:/.*+=,@-]+|`[^`]*`|"
    r"(?:var|local|data|module|each|self|process\.env|os\.environ|os\.getenv)[.(\[][\w.\[\](){}\"'$]*",
    re.IGNORECASE,
)
_PATH = re.compile(
    r"(?:~|\.{1,2}|/(?:run|etc|var|home|root|opt|usr|tmp|mnt|srv|data|dev|proc|sys|app|apps|config|configs|secrets?|"
    r"vault|workspace|builds|Users|Volumes|Library|private|bitnami))(?:/[\w.@%+-]+)+/?|[A-Za-z]:(?:\\[\w. -]+)+"
)
_ADDRESS = re.compile(
    r"(?:jdbc:)?(?:https?|wss?|s?ftps?|ssh|git|file|unix|tcp|udp|redis|rediss|amqps?|mongodb|postgres|postgresql|mysql|"
    r"mariadb|mssql|sqlserver|oracle|ldaps?|smtps?|imaps?|kafka|nats|mqtts?|clickhouse|sqlite|s3|gs|oci|docker)"
    r"(?:\+[a-z0-9]+)?://\S*",
    re.IGNORECASE,
)


def is_none(value: str) -> bool:
    """Whether a value, without its quotes, is no secret by the grammar above, whatever stands around it."""
    if len(value) > MAX_VALUE_CHARS:
        return is_nothing(value)
    return (
        is_nothing(value)
        or is_reference(value)
        or _PLACEHOLDER.fullmatch(value) is not None
        or _asks_for_value(value)
        or is_path(value)
        or _ADDRESS.fullmatch(value) is not None
    )


def is_nothing(value: str) -> bool:
    is_masked = value.startswith(MASK) and not value.replace(MASK, "").strip()
    return is_masked or not value or _NOTHING.fullmatch(value) is not None


def is_label(value: str) -> bool:
    """Whether a text in code or prose is made of words that speak of a secret: `new_password`, `X-Any-Token`."""
    if len(value) > MAX_LABEL_CHARS or not _JOINED_WORDS.fullmatch(value):
        return False
    words = {word.lower() for word in _WORD.findall(value)}
    return bool(words & _NAMING) and (words <= _LABEL_WORDS or value.lower().startswith("x-"))


def is_reference(value: str) -> bool:
    """Whether a value says where a secret is kept, or is made of such parts alone. The defaults in them count."""
    if _REFERENCE.fullmatch(value) is not None:
        return True
    if _REFERENCES.fullmatch(value) is None:
        return False
    return all(_is_plain_reference(unit) for unit in _UNITS.findall(value))


def is_path(value: str) -> bool:
    return _PATH.fullmatch(value) is not None and not any(map(is_mixed, re.split(r"[/\\]", value)))


def is_mixed(value: str) -> bool:
    """Whether it has lower case, upper case and digits, as keys do; or many digits among letters."""
    digits = sum(letter.isdigit() for letter in value)
    return 0 < digits < len(value) and (is_cased(value) or digits >= 4)


def is_cased(value: str) -> bool:
    """Whether it is one word with letters of both cases."""
    return (
        " " not in value and any(letter.islower() for letter in value) and any(letter.isupper() for letter in value[1:])
    )


def _asks_for_value(value: str) -> bool:
    """Whether it is a text like `your-password-here` or `INSERT_TOKEN`."""
    asks = _ASKING.match(value)
    return asks is not None and is_label(value[asks.end() :])


def _is_plain_reference(unit: str) -> bool:
    """Whether a reference holds no value itself."""
    unit = unit.removeprefix("$") if unit.startswith("$$") else unit
    if (default := _DEFAULT.fullmatch(unit)) is not None:
        return is_none(default.group(1)) or _CUT.fullmatch(default.group(1)) is not None
    if unit.startswith("$") and unit[1:2] not in ("{", "("):  # `$db_password`; `$ecret` and `$x9Kq` are values
        words = {word.lower() for word in _WORD.findall(unit)}
        return unit.isupper() or len(unit) <= 2 or unit.startswith("$env:") or words <= _LABEL_WORDS
    given = (part for part in _ALTERNATIVE.split(unit.strip("${}<%= ")) if _GIVES_VALUE.match(part))
    texts = (double or single for part in given for double, single in _QUOTED.findall(part))
    return all(map(is_none, texts))
