"""Which names are those of a secret, and which values beside one are a secret, by their form alone.

What is none in any place, secret_placeholders.py tells. In code and prose a value has to look like a key, or to be what
a variable in capitals is set to (secret_grammar.py).
"""

from __future__ import annotations

import re
from functools import cache

from kairos_mcp.core.secret_forms import MASK, MIN_SECRET_CHARS
from kairos_mcp.core.secret_placeholders import is_label, is_mixed, is_none

ONE_CLASS_CHARS = 16  # a shorter value of letters alone, or of digits alone, is an ordinary word or number
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
_CODE = re.compile(
    r"[<{\[(].*|%[A-Za-z(].*|\$[{(].*|[A-Za-z_][\w.]*(?:[(\[{].*|[),;]+)|_*[a-z]+(?:_[a-z]+)+",
    re.IGNORECASE | re.DOTALL,
)
_PATH = re.compile(r"(?:~|\.{1,2}|)(?:/[\w.@%+-]+)+/?|(?:~|\.{1,2})/[^:\n]*|[A-Za-z]:\\.*")
_COUNT = re.compile(r"[0-9]{1,7}")
_TEMPLATE = re.compile(r"\{[^{}]*\}|<[^<>]*>|%(?:\(|[sdrvq](?!\w))")
_WORD_PATH = re.compile(r"[A-Za-z_-]*(?:(?:/|\.|::)[A-Za-z_-]+)+/?")
_PLAIN_CODE = re.compile(r"[A-Za-z_][\w.]*\(.*", re.DOTALL)
_HAS_LETTER = re.compile(r"[^\W\d_]")
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


def is_set_secret(value: str, *, quoted: bool = False) -> bool:
    """Whether what a variable is set to is a secret, and in code no code, label, type or path either."""
    if is_none(value) or (quoted and is_label(value)):
        return False
    value = value.removeprefix(MASK)
    return not (_WORD_PATH if quoted else _CODE).fullmatch(value)


def names_key(name: str) -> bool:
    """Whether a member of this name holds a key or is a header that does."""
    return len(name) <= 80 and _key_name().fullmatch(name) is not None


def is_setting(value: str, *, counts: bool = False) -> bool:
    """Whether a value beside a secret's name in settings is a secret. `counts`: the name may be that of a number."""
    plain = value.strip().strip("\"'")
    return not is_none(plain) and not (counts and _COUNT.fullmatch(plain))


def is_plain_password(value: str, *, quoted: bool = True) -> bool:
    """Whether a text beside a name for a password is one, in code or prose: no template, no label, no code."""
    if len(value) > 200 or not value.strip() or is_none(value) or is_label(value):
        return False
    value = value.removeprefix(MASK)
    if not quoted and (_CODE.fullmatch(value) or _IDENTIFIERS.fullmatch(value)):
        return False
    if _WORD_PATH.fullmatch(value) or _PLAIN_CODE.fullmatch(value) or _TEMPLATE.search(value):
        return False
    return len(value) >= 6 if value.isdigit() else _HAS_LETTER.search(_LETTER_ESCAPE.sub("", value)) is not None


@cache
def _key_name() -> re.Pattern[str]:
    names = (
        r"api[_-]?key|apikey|access[_-]?key|secret[_-]?key|private[_-]?key|account[_-]?key|auth[_-]?key|"
        r"signing[_-]?key|encryption[_-]?key|client[_-]?secret|secret|access[_-]?key[_-]?id|token|"
        r"password|passwd|passphrase|credentials?"
    )
    return re.compile(rf"(?:.*[^a-z]|.*[a-z](?=[A-Z])|.*)?(?:{names}|{HEADERS})", re.IGNORECASE)
