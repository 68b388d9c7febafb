"""Find secrets in files that are known by their names: password files, tables, and files that hold one value alone.

    password file = `.pgpass`, `.netrc`, `.htpasswd`, `shadow`, `sasl_passwd`, `chap-secrets`: each by its own places
    table         = `.csv`, `.tsv`: the columns whose heading is the name of a secret
    value alone   = a file of one line whose name is that of a secret: `secrets/db_password`, `master.key`

Files like `.env` are no matter of this file: they may not even be read unasked (env_files.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kairos_mcp.core.secret_spans import Span
from kairos_mcp.core.secret_values import is_setting, names_secret

_VALUE_FILE_ENDINGS = re.compile(r"\.(?:txt|key|secret)$")
_VALUE_FILES = re.compile(r"(?:master|production|staging)\.key|\.erlang\.cookie|\.?vault[_-](?:pass|token).*")
_PASSWORD_FILES: tuple[tuple[re.Pattern[str], re.Pattern[bytes]], ...] = (  # by name; the one group is the secret
    (
        re.compile(r"\.?pgpass(?:\.conf)?|\.pgpass.*"),
        re.compile(rb"(?m)^[^#\r\n](?:[^:\\\r\n]|\\.)*(?::(?:[^:\\\r\n]|\\.)*){3}:([^\r\n]+)"),
    ),
    (
        re.compile(r"[._]?(?:netrc|authinfo)(?:\..*)?"),
        re.compile(rb"(?:^|\s)(?:password|passwd|account)\s+(\"(?:[^\"\\\r\n]|\\.)*\"|\S+)"),
    ),
    (re.compile(r"\.?htpasswd.*|g?shadow-?|passwd-?"), re.compile(rb"(?m)^[^:#\r\n]+:([^:\r\n]{2,})")),
    (re.compile(r"sasl_passwd.*"), re.compile(rb"(?m)^[^#\s]\S*[ \t]+[^\s:]+:([^\r\n]+)")),
    (re.compile(r"(?:chap|pap)-secrets"), re.compile(rb"(?m)^[ \t]*[^#\s]\S*[ \t]+\S+[ \t]+(\"[^\"\r\n]*\"|\S+)")),
    (
        re.compile(r"[._]curlrc"),
        re.compile(rb"(?m)^[ \t]*-{0,2}(?:proxy-)?user[ \t]*[=: \t][ \t]*\"?[^:\"\r\n]+:([^\"\r\n]+)"),
    ),
)
_TABLE = re.compile(r".*\.(?:csv|tsv)")
MAX_VALUE_FILE_BYTES = 4 << 10  # of a file that holds one value alone


def telling_name(path: str) -> str:
    """Return a file's own name if it tells what is secret in the file, else nothing."""
    name = path.rstrip("/").rpartition("/")[2].casefold()
    holds_value = names_secret(_VALUE_FILE_ENDINGS.sub("", name)) or _VALUE_FILES.fullmatch(name) is not None
    tells = holds_value or is_table(name) or any(names.fullmatch(name) for names, _ in _PASSWORD_FILES)
    return name if tells else ""


def find_by_file_name(name: str, content: bytes) -> Iterator[Span]:
    """Yield the secrets that only a file's name tells, in order; some reach over several lines."""
    if is_table(name):
        return _find_in_table(content)
    for names, pattern in _PASSWORD_FILES:
        if names.fullmatch(name):
            return (found.span(1) for found in pattern.finditer(content) if found.group(1).strip() not in (b"*", b"x"))
    return _find_value_alone(content)


def is_table(path: str) -> bool:
    """Whether a file is a table, whose first line says what is secret in all the others."""
    return _TABLE.fullmatch(path.rpartition("/")[2].casefold()) is not None


def names_secret_column(head: bytes) -> bool:
    """Whether the first line of a table has a column with the name of a secret."""
    line = head.split(b"\n", 1)[0]
    return any(_is_column(head[start:end]) for start, end, _ in _fields(line + b"\n", _separator(line)))


def _find_value_alone(content: bytes) -> Iterator[Span]:
    value = content.strip() if len(content) <= MAX_VALUE_FILE_BYTES else b""
    start = content.find(value)
    if value and not re.search(rb"\s", value) and is_setting(value.decode("utf-8", "replace")):
        yield start, start + len(value)


def _find_in_table(content: bytes) -> Iterator[Span]:
    """Yield the fields of the columns whose heading, in the first line, is the name of a secret."""
    column, secret, in_head = 0, set[int](), True
    for start, end, ends_row in _fields(content, _separator(content.split(b"\n", 1)[0])):
        if in_head and _is_column(content[start:end]):
            secret.add(column)
        elif not in_head and column in secret and start < end:
            yield start, end
        column += 1
        if ends_row:
            if in_head and not secret:
                return
            column, in_head = 0, False


def _is_column(heading: bytes) -> bool:
    name = heading.decode("utf-8", "replace").strip("\ufeff\"' \r")
    return names_secret(name.replace(" ", "_"))


def _separator(head: bytes) -> bytes:
    return max((b",", b";", b"\t", b"|"), key=head.count)


def _fields(content: bytes, separator: bytes) -> Iterator[tuple[int, int, bool]]:
    """Yield where each field of a table stands, without its quotes, and whether it ends its row."""
    unquoted = re.compile(rb"[^" + re.escape(separator) + rb"\n]*")
    at = 0
    while at < len(content):
        start = at
        if content[at : at + 1] == b'"':
            at += 1
            while (found := content.find(b'"', at)) >= 0 and content[found + 1 : found + 2] == b'"':
                at = found + 2
            at = len(content) if found < 0 else found + 1
        rest = unquoted.match(content, at)
        at = at if rest is None else rest.end()
        quoted = content[start : start + 1] == b'"'
        body = content[start:at].rstrip(b"\r ")
        end = start + len(body.removesuffix(b'"') if quoted else body)
        yield start + quoted, max(end, start + quoted), content[at : at + 1] != separator
        at += 1
