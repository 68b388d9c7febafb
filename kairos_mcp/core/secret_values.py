"""Which names are those of a secret, and which values beside one are a secret, by their form alone.

No VALUE is: nothing, a reference, a placeholder, a word like `true`, the path of a file, or a label (`your-password`).
In code and prose a value has to look like a key, or to be what a variable in capitals is set to (secret_grammar.py).
"""

from __future__ import annotations

import re
from functools import cache

from kairos_mcp.core.secret_forms import MASK, MIN_SECRET_CHARS

ONE_CLASS_CHARS = 16  # a shorter value of letters alone, or of digits alone, is an ordinary word or number
MAX_VALUE_CHARS = 800  # a longer value is no word, reference or label
MAX_LABEL_CHARS = 64
STRONG = r"passwords?|passwd|passphrase|passcode|pwd|pass|client[_-]?secret|secrets?|credentials?|(?:bind|root)pw|_pw"
_KEYS = (
    r"api[ _-]?key|apikey|secret[ _-]?key|private[ _-]?key|account[ _-]?key|auth[ _-]?key|signing[ _-]?key|"
    r"encryption[ _-]?key|master[ _-]?key|session[ _-]?key|shared[ _-]?key|consumer[ _-]?key|subscription[ _-]?key|"
    r"(?:app|jwt|deploy|logged_in|nonce)[_-]key|key[_-]?base|key[_-]data|tls\.key|psk|(?:auth|in|nonce)_salt"
)
WEAK = rf"{_KEYS}|access[ _-]?key(?:[ _-]?id)?|token|cookies?|_auth"
HEADERS = (
    "authorization|proxy-authorization|cookie|set-cookie|"
    "x-api-key|x-auth-token|x-goog-api-key|x-amz-security-token|api-key"
)
_VARIABLE = re.compile(  # an environment variable; what it is set to is hidden whatever it looks like
    r"(?:[A-Z][A-Z0-9]*_+)*(?:PASSWORD|PASSWD|PASSPHRASE|PASS|SECRET|SECRETS|COOKIE|COOKIES|"
    r"(?:API|ACCESS|SECRET|PRIVATE|AUTH|SIGNING|ENCRYPTION|MASTER|SESSION|SHARED|LOGGED_IN|NONCE)_KEY|"
    r"SECRET_KEY_BASE|(?:AUTH|IN|NONCE)_SALT)(?:_?\d+)?|[A-Z][A-Z0-9_]*_PWD|"
    r"[A-Z][A-Z0-9_]*(?:PASSWORD|PASSWD|PASSPHRASE|PASS|PWD)(?:_?\d+)?"
)
_WORD_IN_PASS = re.compile(  # words that end as a short name does and name no secret; a path is no value anyway
    r"(?:.*[^A-Za-z])?(?:by|com|encom|tres|sur|over|under|multi|single|im|sub|one|two|first|second|last|old|tress)_?"
    r"(?:pass|pwd)(?:_?\d+)?",
    re.IGNORECASE,
)
STRONG_NAME = re.compile(rf"(?:{STRONG})(?:[_-]?\d{{1,3}})?", re.IGNORECASE)
_ENDS_IN_SECRET = re.compile(rf"(?:{STRONG}|{WEAK})(?:[_-]?\d{{1,3}})?$", re.IGNORECASE)
_LABEL = re.compile(
    r"(?:.*[^a-z])?(?:passwords?|passwd|passphrase|pwd|pass|secrets?|tokens?|keys?|apikey|credentials?|cookies?)"
    r"(?:[^a-z].*)?|change[-_ ]?(?:me|it)|redacted|example|placeholder|value|dummy|todo|x{3,}|your[-_ ].*",
    re.IGNORECASE,
)
_NOTHING = re.compile(
    r"[*.?_•-]+|x{3,}|none|null|nil|~|true|false|yes|no|on|off|undefined|required|optional|string|str|bytes|any|secretstr|"
    r"\.\.\.|[|>][-+0-9]{0,2}",
    re.IGNORECASE,
)
_ENV_REFERENCE = (  # `$X9_TOKEN`, `$db_password`, `$1`; what only begins like one, as `$x9Kq`, is a value
    rf"\$(?:[A-Z_][A-Z0-9_]*|\w|[A-Za-z0-9_]*?(?i:{STRONG}|{WEAK}|key|user|env))(?!\w)"
)
_UNIT = rf"\$\{{[^{{}}]*\}}|\$\{{\{{[^{{}}]*\}}\}}|\{{\{{[^{{}}]*\}}\}}|<%[^%]*%>|%[A-Za-z_]\w*%|{_ENV_REFERENCE}"
_DEFAULT = re.compile(r"\$\{\w+:?[-=]([^{}]+)\}")  # of a reference: `${DB_PASSWORD:-hunter}`
_REFERENCES = re.compile(rf"(?:(?>{_UNIT})[-_:/.@ ]*+)++", re.DOTALL)  # matched in one way alone
_REFERENCE = re.compile(
    r"\$\(.*\)?|%\(.*\)s|\{.*\}|[{\[(]|\[.*\]|<[^<>]*>|\(.*\)|"
    r"(?:env|keyring|file|vault|op|secret|ssm|arn|aws|gcp|azure)[:.].*|`.*`|"
    r"(?:var|local|data|module|each|self|process\.env|os\.environ|os\.getenv)[.(\[].*",
    re.DOTALL | re.IGNORECASE,
)
_CODE = re.compile(
    r"[<{\[(].*|%[A-Za-z(].*|\$[{(].*|[A-Za-z_][\w.]*(?:[(\[{].*|[),;]+)|_*[a-z]+(?:_[a-z]+)+",
    re.IGNORECASE | re.DOTALL,
)
_PATH = re.compile(r"(?:~|\.{1,2}|)(?:/[\w.@%+-]+)+/?|(?:~|\.{1,2})/[^:\n]*|[A-Za-z]:\\.*")
_LETTER_ESCAPE = re.compile(r"\\[abfnrtv]")
_IDENTIFIERS = re.compile(r"[A-Za-z_]\w*(?:(?:\.|::|->)[A-Za-z_]\w*)+")
_WORDS = re.compile(  # as "round-3/call-2", "next-page"; one separator a turn, so that a text matches in one way alone
    r"[A-Za-z]+\d{0,3}(?:[-_/. ][A-Za-z]*\d{0,3})*"
)


def looks_like_key(value: str, *, quoted: bool) -> bool:
    """Whether a value beside a key's name looks like a key, and not like words, a path, an address or a name."""
    value = value.removeprefix(MASK)
    if len(value) < MIN_SECRET_CHARS or len(set(value)) < 4 or "://" in value:
        return False
    if _PATH.fullmatch(value) or _WORDS.fullmatch(value) or _IDENTIFIERS.fullmatch(value):
        return False
    digits = sum(letter.isdigit() for letter in value)
    if quoted:
        return 0 < digits < len(value)
    return is_mixed(value) or (len(value) >= ONE_CLASS_CHARS and 3 <= digits < len(value))


def is_variable(name: str) -> bool:
    """Whether an environment variable of this name holds a secret whatever it is set to, as `DB_PASSWORD`."""
    return len(name) <= 80 and _VARIABLE.fullmatch(name) is not None and not _WORD_IN_PASS.fullmatch(name)


def names_secret(name: str) -> bool:
    """Whether a name, of a column or a file, ends in that of a secret."""
    return len(name) <= 80 and _ENDS_IN_SECRET.search(name) is not None and not ends_as_word(name)


def ends_as_word(name: str) -> bool:
    """Whether a name only ends like that of a secret, as `compass` and `bypass` do."""
    return _WORD_IN_PASS.fullmatch(name[-80:]) is not None


def is_set_secret(value: str) -> bool:
    """Whether what a variable is set to is a secret, and not a reference, code, a type, a path or nothing."""
    if is_nothing(value) or "://" in value or _is_reference(value):
        return False
    value = value.removeprefix(MASK)
    return not (_CODE.fullmatch(value) or _PATH.fullmatch(value))


def names_key(name: str) -> bool:
    """Whether a member of this name holds a key or is a header that does."""
    return len(name) <= 80 and _key_name().fullmatch(name) is not None


def is_setting(value: str, *, strong: bool = True) -> bool:
    """Whether a value beside a secret's name in settings is a secret."""
    plain = value.strip().strip("\"'")
    if len(plain) > MAX_VALUE_CHARS:
        return True
    if (default := _DEFAULT.fullmatch(plain)) is not None:
        return is_setting(default.group(1), strong=strong)
    if not plain or is_nothing(plain) or _is_reference(plain) or _is_path(plain):
        return False
    plain = plain.removeprefix(MASK)
    if " " not in plain and is_label(plain):
        return False
    if "://" in plain:  # its password is found by itself
        return False
    return strong or not (plain.isdigit() and len(plain) < ONE_CLASS_CHARS)


def is_plain_password(value: str) -> bool:
    """Whether a quoted text beside a name for a password is one, in code: no sentence, no label, no code."""
    if len(value) > 200 or not value.strip() or is_nothing(value) or is_label(value) or _is_reference(value):
        return False
    value = value.removeprefix(MASK)
    if "://" in value or _is_path(value) or _CODE.fullmatch(value) or _IDENTIFIERS.fullmatch(value):
        return False
    return bool(re.search(r"[^\W\d_]", _LETTER_ESCAPE.sub("", value))) and not re.search(r"[{}<>]|%[(\w]", value)


def is_nothing(value: str) -> bool:
    is_masked = value.startswith(MASK) and not value.replace(MASK, "").strip()
    return is_masked or _NOTHING.fullmatch(value) is not None


def _is_reference(value: str) -> bool:
    """Whether a value says where a secret is kept, or is made of such parts alone."""
    if value.startswith(MASK):
        return False
    return _REFERENCE.fullmatch(value) is not None or _REFERENCES.fullmatch(value) is not None


def _is_path(value: str) -> bool:
    return _PATH.fullmatch(value) is not None and not any(map(is_mixed, value.split("/")))


def is_label(value: str) -> bool:
    value = value.removeprefix(MASK)
    return len(value) <= MAX_LABEL_CHARS and _LABEL.fullmatch(value) is not None


def is_mixed(value: str) -> bool:
    """Whether it has lower case, upper case and digits, as keys do; or many digits among letters."""
    digits = sum(letter.isdigit() for letter in value)
    return 0 < digits < len(value) and (is_cased(value) or digits >= 4)


def is_cased(value: str) -> bool:
    """Whether it is one word with letters of both cases."""
    return (
        " " not in value and any(letter.islower() for letter in value) and any(letter.isupper() for letter in value[1:])
    )


@cache
def _key_name() -> re.Pattern[str]:
    names = (
        r"api[_-]?key|apikey|access[_-]?key|secret[_-]?key|private[_-]?key|account[_-]?key|auth[_-]?key|"
        r"signing[_-]?key|encryption[_-]?key|client[_-]?secret|secret|access[_-]?key[_-]?id|token|"
        r"password|passwd|passphrase|credentials?"
    )
    return re.compile(rf"(?:.*[^a-z]|.*[a-z](?=[A-Z])|.*)?(?:{names}|{HEADERS})", re.IGNORECASE)
