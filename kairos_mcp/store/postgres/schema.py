"""The tables on PostgreSQL: made from those of the state file, so that there is one list of migrations for both.

Statements of the store take JSON apart by the functions that SQLite has. PostgreSQL is given the same, over texts, so
that no statement has to be written twice. Where SQLite returns a value of whatever type, these return text, and
`->> 0`, an element of an array, an integer; a value of another type than is asked for is null and fails nothing.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kairos_mcp.core.errors import StoreTooNew, StoreUnavailable
from kairos_mcp.store import schema
from kairos_mcp.store.postgres.locks import MIGRATION_LOCK, WRITERS_LOCK
from kairos_mcp.store.postgres.nul_characters import READABLE_JSON, restore_nul
from kairos_mcp.store.rows import Session

if TYPE_CHECKING:  # the statements are of use without a driver
    from kairos_mcp.store.postgres.session import PostgresSession

FUNCTIONS = (
    READABLE_JSON,
    # A path as SQLite writes it ($.a.b, $[0]), as PostgreSQL has it: {a,b}, {0}.
    """
    create function json_path_parts(path text) returns text[] language sql immutable parallel safe as $$
        select string_to_array(trim(both '.' from translate(path, '$[]', '.')), '.') $$
    """,
    """
    create function json_valid(body text) returns boolean language sql immutable parallel safe as $$
        select body is json $$
    """,
    """
    create function json_extract(body text, path text) returns text language sql immutable parallel safe as $$
        select readable_json(body) #>> json_path_parts(path) $$
    """,
    """
    create function json_kind(body json) returns text language sql immutable parallel safe as $$
        select case json_typeof(body) when 'string' then 'text' when 'boolean' then body::text
            when 'number' then case when body::text !~ '^-?[0-9]+$' then 'real'
                when body::text::numeric between -9223372036854775808 and 9223372036854775807 then 'integer'
                else 'real' end
            else json_typeof(body) end $$
    """,
    """
    create function json_type(body text) returns text language sql immutable parallel safe as $$
        select json_kind(body::json) $$
    """,
    """
    create function json_type(body text, path text) returns text language sql immutable parallel safe as $$
        select json_kind(readable_json(body) #> json_path_parts(path)) $$
    """,
    """
    create function json_array_length(body text) returns bigint language sql immutable parallel safe as $$
        select case when json_typeof(body::json) = 'array' then json_array_length(body::json) else 0 end $$
    """,
    """
    create function json_integer_at(body text, at integer) returns bigint language sql immutable parallel safe as $$
        select case when json_kind(body::json -> at) = 'integer' then (body::json ->> at)::bigint end $$
    """,
    "create operator ->> (leftarg = text, rightarg = integer, function = json_integer_at)",
    """
    create function json_each(body text) returns table(key text, value text, type text)
        language sql immutable parallel safe as $$
        select (place - 1)::text, item #>> '{}', json_kind(item) from json_array_elements(case
            when json_typeof(body::json) = 'array' then readable_json(body) end) with ordinality as list(item, place)
        union all
        select name, item #>> '{}', json_kind(item) from json_each(
            case when json_typeof(body::json) = 'object' then readable_json(body) end) as fields(name, item) $$
    """,
    """
    create function instr(body text, part text) returns boolean language sql immutable parallel safe as $$
        select strpos(body, part) > 0 $$
    """,
    """
    create function substr(body text, start bigint, count bigint) returns text
        language sql immutable parallel safe as $$ select substr(body, start::integer, count::integer) $$
    """,
    """
    create function iif(is_so boolean, one bigint, other bigint) returns bigint
        language sql immutable parallel safe as $$ select case when is_so then one else other end $$
    """,
)
"""What statements call that PostgreSQL does not have, or has for other types."""

LEAST_VERSION = 160_000  # of PostgreSQL: aliases of subqueries
SEALING_KEY = "request-state"  # the name of the secret with which is sealed what clients carry between two calls

OWN_TABLES = (
    "create table version(number bigint not null)",  # how many of the migrations it has
    # How many transactions wrote, by the session that made them: one row for all would be waited for.
    "create table commits(session bigint primary key, number bigint not null)",
    # Of each living server: its session lock, and until when it counts as alive without a sign.
    "create table lease(lock text primary key, key bigint not null, lease_ms bigint not null,"
    " seen_at timestamptz not null)",
    # Bearer tokens for HTTP: the name is the principal, and has two at most; of a token only a hash is kept.
    "create table token(name text not null, hash text not null, made_at bigint not null, expires_at bigint,"
    " scopes text not null, used_at bigint, primary key(name, hash))",
    "create table secret(name text primary key, value bytea not null)",
)
"""What is kept in files, or by SQLite itself, where a folder is the store."""

_COLUMN_RULES = (
    # Of two transactions the one that began first may end last, and so may its events, whatever their ids.
    (r"\btx integer not null default 0\b", "tx bigint not null default pg_current_xact_id()::text::bigint"),
    (
        r"\bdefault \(cast\(unixepoch\('subsec'\) \* 1000 as integer\)\)",
        "default (extract(epoch from clock_timestamp()) * 1000)::bigint",
    ),
    (r"\bmark integer primary key references\b", "step bigint primary key references"),  # the key of another table
    (r"\binteger primary key\b", "bigint generated by default as identity primary key"),
    (r"\bunasked integer not null default 0\b", "unasked boolean not null default false"),  # a condition by itself
    (r"\binteger\b", "bigint"),
    (r"\bblob\b", "bytea"),
    (r"(?<=\w )(?<!table )text\b", 'text collate "C"'),  # compared byte by byte, as SQLite does
    (r" references \w+", ""),  # a run's owner may be nobody's number; `doctor` looks for the others
    (r"\) strict$", ")"),
)
_CONDITION_RULES = (  # integers that SQLite takes for conditions
    (r"\bnot new\.waits_outside\b", "new.waits_outside = 0"),
    (r"\bwhen new\.waits_outside\b(?! =)", "when new.waits_outside <> 0"),
    (r"(new\.\w+) is not (old\.\w+)", r"\1 is distinct from \2"),
)
_TRIGGER = re.compile(r"create trigger (\w+) (after .+? on \w+)(?: when (.+?))? begin (.+) end", re.IGNORECASE)


def list_statements() -> list[str]:
    """Return the statements that make the functions, tables, indexes and triggers of this version, in their order."""
    return [*FUNCTIONS, *(part for kind, made in schema.list_statements() for part in _translate(kind, made))]


def _translate(kind: str, statement: str) -> list[str]:
    match kind:
        case "table":
            return [_translate_table(statement)]
        case "view":
            return [statement.replace("tx < 1", "tx < pg_snapshot_xmin(pg_current_snapshot())::text::bigint")]
        case "trigger":
            return _translate_trigger(_apply(_CONDITION_RULES, statement))
        case _:
            return [_apply(_CONDITION_RULES, statement)]


def _translate_table(statement: str) -> str:
    """Translate a table. One without an integer key gets the column `rowid`, by which SQLite knows the order in which
    its rows were inserted."""
    translated = _apply(_COLUMN_RULES, statement.removesuffix(" without rowid"))
    if "generated" in translated or "step bigint primary key" in translated or statement.endswith("without rowid"):
        return translated
    return f"{translated.removesuffix(')')}, rowid bigint generated always as identity)"


def _translate_trigger(statement: str) -> list[str]:
    found = _TRIGGER.fullmatch(statement)
    assert found is not None, statement
    name, event, condition, body = found.groups()
    when = f" when ({condition})" if condition else ""
    return [
        f"create function {name}() returns trigger language plpgsql as $$ begin {body} return null; end $$",
        f"create trigger {name} {event} for each row{when} execute function {name}()",
    ]


def _apply(rules: tuple[tuple[str, str], ...], statement: str) -> str:
    for pattern, replacement in rules:
        statement = re.sub(pattern, replacement, statement, flags=re.IGNORECASE)
    return statement


def check_version(session: PostgresSession) -> None:
    """Raise StoreTooNew for tables of a newer version, StoreUnavailable where there are none, or older ones."""
    version, newest = read_version(session), len(schema.MIGRATIONS)
    if version > newest:
        raise StoreTooNew(
            f"The database has version {version}; this program knows {newest}.",
            "Install the newer kairos-mcp that made it, or name another database.",
        )
    if version < newest:
        lacks = f"has version {version}, and this program needs {newest}" if version else "has no tables of Kairos"
        raise StoreUnavailable(f"The database {lacks}.", "Run `kairos-mcp store migrate`, once for all servers.")


def migrate(session: PostgresSession) -> tuple[int, int]:
    """Make the tables, or bring older ones to this version, in one transaction; of several processes that come at once
    one does. Return the version before and after. Raises StoreTooNew."""
    session.rows("set statement_timeout = 0")
    with session.connection.transaction():
        session.rows("select pg_advisory_xact_lock(?)", (MIGRATION_LOCK,))
        session.rows("select pg_advisory_xact_lock(?)", (WRITERS_LOCK,))
        before, newest = read_version(session), len(schema.MIGRATIONS)
        for statement in plan_migration(session):
            session.rows(statement)
        if before == 0:
            session.rows("insert into version values (?)", (newest,))
        elif before < newest:
            session.rows("update version set number = ?", (newest,))
    return before, newest


def plan_migration(session: PostgresSession) -> list[str]:
    """Return the statements with which `migrate` would bring the database to this version; none if it has all of it.
    Functions, and the tables that a state folder has as files, have no number of their own: they are compared.

    Raises StoreTooNew, StoreUnavailable.
    """
    check_is_new_enough(session)
    before = read_version(session)
    if before == 0:
        return [*list_statements(), *OWN_TABLES]
    if before > len(schema.MIGRATIONS):
        check_version(session)
    return [*_list_added(before), *list_renewals(session)]


def check_is_new_enough(session: PostgresSession) -> None:
    """Raise StoreUnavailable for a server whose version lacks what the statements need."""
    number = session.connection.info.server_version
    if number < LEAST_VERSION:
        raise StoreUnavailable(
            f"The database is PostgreSQL {number // 10_000}, which is too old.", "Use PostgreSQL 16 or newer."
        )


COLUMNS = "select table_name, column_name from information_schema.columns where table_schema = current_schema()"
_FUNCTION = re.compile(r"\s*create function (\w+)\(.*?\$\$(.*)\$\$", re.DOTALL)
_OWN_TABLE = re.compile(r"create table (\w+)\((.*)\)", re.DOTALL)
_COLUMN = re.compile(r"(?:[^,()]|\([^()]*\))+")


def list_renewals(session: Session) -> list[str]:
    """Return the statements that make what the database lacks of this version's functions, or has otherwise, and of
    the columns of its own tables."""
    found = session.rows("select proname, prosrc from pg_proc where pronamespace = current_schema()::regnamespace")
    bodies: dict[str, set[str]] = {}
    for name, body in found:
        bodies.setdefault(name, set()).add(_squeeze(body))
    renewals = [
        statement.replace("create function", "create or replace function", 1)
        for statement in list_statements()
        if (made := _FUNCTION.match(statement)) and _squeeze(restore_nul(made[2])) not in bodies.get(made[1], ())
    ]
    columns = set(session.rows(COLUMNS))
    tables = {table for table, _ in columns}
    for statement in OWN_TABLES:
        made = _OWN_TABLE.match(statement)
        assert made is not None, statement
        if made[1] not in tables:
            renewals.append(statement)
            continue
        for definition in map(str.strip, _COLUMN.findall(made[2])):
            column = definition.split()[0]
            if not column.startswith("primary") and (made[1], column) not in columns:
                renewals.append(f"alter table {made[1]} add column {definition.replace(' not null', '')}")
    return renewals


def _squeeze(text: str) -> str:
    return " ".join(text.split())


def _list_added(version: int) -> list[str]:
    """Return the statements of the migrations after this version. They may only add: servers of the version before
    go on meanwhile."""
    added = []
    for statement in _split(";".join(schema.MIGRATIONS[version:])):
        verb, kind, *_ = statement.split()
        added += _translate(kind, statement) if verb == "create" else [_apply(_COLUMN_RULES, statement)]
    return added


def _split(statements: str) -> Iterator[str]:
    """Yield the statements of a migration, each in one line; a trigger holds statements of its own."""
    text = ""
    for part in statements.split(";"):
        text += f"{part};"
        if sqlite3.complete_statement(text):
            if statement := " ".join(text.split()).strip("; "):
                yield statement
            text = ""


def read_version(session: Session) -> int:
    """Return the version of the tables; 0 where there are none. Raises StoreTooOld."""
    found = session.row("select to_regclass('version'), to_regclass('mark')")
    if found is None or found[0] is None:
        return 0
    if found[1] is not None:
        raise schema.too_old_error("database")
    found = session.row("select number from version")
    return 0 if found is None else int(found[0])
