"""The tables, as a list of migrations; the file's `user_version` says how many have been applied.

run         a flow with its encoded spec. `owner`, `fence`: the server that owns it now. `workspace`: the real path of
            the one folder that it works in, '' for none; it is part of the identity of a start and of its `key`.
            `place`: of the machines where that folder is; null: wherever a server has one of that path.
            `outcome`: once it has ended. `seq` rises with each commit of the run; `news_seq` is its value at the newest
            change that matters to whoever waits for the run. `cached`, `exactness`: of its answered completions, the
            tokens that came from a cache, and the kinds of count that there were (each with a comma behind it)
mark        a step. `held`: what it has reserved; null while it is open (handed out, not begun here)
waiting     the marks that are open and have no answer, so that a look at them costs the same in a run of any length
answer      the one answer of a mark; its primary key makes a second one impossible
attempt     a further attempt at a step. `ended`: how the one before it did; `lost`: what that stays charged with.
            `handed_out`: it waits, and is not begun here
account     a limit: caps (null: none), what open and begun steps hold, what is spent. `scope` is one of
            run;
            branch: its path in `name`, within the account `parent`; the steps below that path are charged to it;
            day: of the principal `name` on the day `period`; `mistaken`: when a person said that the clock was wrong;
            mandate: its id in `name`, and its `workspace`, within a day.
            A mark and an attempt name in `shared` the day and the mandate that they are charged to
deposit     a control request for a run's owner (pause, resume, extend, reroute, cancel, settle, verdict). `taken`: when
            the owner handled it. Of kind `grant` it is no request: more rounds that a loop was granted, with the answer
            of the call that asked for them
ask         a round trip in which a client was asked to answer what waits in a run. `keys`: what was asked. `nonce`: in
            the state that the client sends back. `consumed`: when its answer was used. `state`: that state, where the
            client is asked through a task, and carries none
task        a call about a run that was answered with an MCP task. `n`: which one of its run. `answered`: the keys that
            the call answered. `attached`: it found the run. `skipped`: the keys that its client is asked about no more.
            `ending`: completed, failed, cancelled; null while it is open. `result`: what it ended with
request     a completion of an open step that a client's model was asked for. `session`: the client's. `nonce`: the ask
            that it is part of; null: it was pushed. `bound`: the most that it can cost. `ended`: answered, refused,
            withdrawn; null while it is outstanding. `charged`: the attempt that is charged with its bound once it was
            withdrawn (0: the step's answer is)
prefix      the first request of a conversation (`mark`) whose cost a provider reported: `digest` of what it begins with
            and of the model, its input `tokens`, whose run it was
note        what was cut, defaulted or done otherwise than asked in a run. `step`: its newest mark at that moment, 0 for
            none
text        long texts, once each, by the hash of their content
memory      what a tool remembers about a run, by name: a plan of edits; what a call is about to change, until it has
            its answer
approval    what a person is asked before a step is begun: what was shown, its digest, and the one verdict. `unasked`:
            too many others wait, so it was shown to nobody, and its time does not run yet. `shape`: what a rule about
            such calls would be about; null where each is asked about. `private_preview`: what the person is shown in
            place of `preview`, where that depends on a file that may not be read unasked
rule        a remembered approval: calls that a person allowed from then on (`covered`) of one tool with this definition
            (`pin`), in one workspace, which is the same folder still (`folder`). `run`: for that run alone. It was made
            with the approval `key` of the run `approved_in`. `removed`: since when it counts no more
definition  a tool's definition as another source gave it: approved, pending or removed, and by whom. The row without a
            name says that the source was seen; its `body` names the source of today that adopted this one, which an
            earlier version had named
mandate     a goal to work on in cycles, by principal, `workspace` ('' for none) and id: its canonical text, and when it
            was last started on schedule. A run of it names it in `run.mandate`; at most one of those is open.
            `workspace` is null only for one that was saved before mandates had one. `place`: as of a run
push        what the server `owner` is asking a client through a connection: in a run, by the key of what waits. It
            counts for nothing once that server is dead
owner       a server that may own runs, alive while it holds its lock file. `serves`: its workspaces, routes, settings
            file, version, and a digest of each of its settings, written when it starts
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple

import apsw

from kairos_mcp.core.errors import StoreCorrupt, StoreTooNew
from kairos_mcp.core.limits import Units
from kairos_mcp.store.connection import SqliteSession
from kairos_mcp.store.rows import Session

_UNITS = [f"{kind}_{unit}" for kind in ("cap", "held", "spent") for unit in Units._fields]
_UNIT_COLUMNS = ", ".join(
    f"{name} integer" if name.startswith("cap_") else f"{name} integer not null default 0" for name in _UNITS
)

_CHECKED_COLUMNS = ", ".join(  # an integer that grew past 64 bits would silently become a real one
    f"{name} integer {'not null default 0' * (not name.startswith('cap_'))} check({name} >= 0)" for name in _UNITS
)
_AMOUNTS = ", ".join(_UNITS)


class _SeqTrigger(NamedTuple):
    """A write that counts as a commit of a run. `run`: SQL for the run's number. `news`: SQL for whether it is news."""

    table: str
    event: str
    run: str = "new.run"
    news: str = ""


_RUN_OF_MARK = "(select run from mark where id = new.mark)"
_SEQ_TRIGGERS = (
    _SeqTrigger("mark", "insert"),
    _SeqTrigger("answer", "insert", _RUN_OF_MARK),
    _SeqTrigger("attempt", "insert", _RUN_OF_MARK, "new.ended = 'unknown' and new.handed_out = 1"),
    _SeqTrigger("deposit", "insert", news="new.kind = 'settle'"),
    _SeqTrigger("deposit", "update"),
    _SeqTrigger("request", "insert"),
    _SeqTrigger("request", "update"),
    _SeqTrigger("note", "insert"),
    _SeqTrigger("approval", "insert", news="new.verdict is null and not new.unasked"),
    _SeqTrigger("approval", "update", news="new.verdict is not old.verdict or new.unasked is not old.unasked"),
    _SeqTrigger(
        "run",
        "update of owner, fence, route, paused, resume_at, outcome",
        "new.n",
        "new.paused is not old.paused and new.paused is not null or new.outcome is not old.outcome",
    ),
)
"""The writes that raise `run.seq`, and which of them are news to whoever waits for the run.

News are a call of unknown outcome, a settlement, an approval asked or decided, a pause, the end. That a step was handed
out is known only once its commit is written (apply_commit). They are triggers, so that no writer can forget them.
"""

_SEQ = "\n".join(
    f"""
    create trigger {table}_{event.partition(" ")[0]}_seq after {event} on {table} begin
        update run set seq = seq + 1{f", news_seq = iif({news}, seq + 1, news_seq)" if news else ""} where n = {run};
    end;"""
    for table, event, run, news in _SEQ_TRIGGERS
)

UNPRICED = """instr(sent, '"unpriced":true')"""
"""SQL for whether a model without a known price was asked: the words of the index of such rows."""

OF_PROVIDER = """instr(sent, '"route":"provider"')"""
"""SQL for whether a provider was asked: the words of the index of such rows."""

MIGRATIONS: tuple[str, ...] = (
    f"""
    create table account(id integer primary key, parent integer references account, scope text not null,
        period text, {_UNIT_COLUMNS});
    create table owner(id integer primary key, lock text not null unique, pid integer not null,
        via text not null, started_at integer not null);
    create table run(n integer primary key, id text not null unique, flow text not null, version integer not null,
        spec text not null, principal text not null, via text not null, client text not null, key text,
        start_digest blob not null, workspace text, account integer not null references account,
        created_at integer not null, owner integer references owner, fence integer not null default 0,
        route text not null, paused text, outcome text, ended_at integer);
    create unique index run_key on run(principal, key) where key is not null;
    create index run_start on run(start_digest);
    create index run_open on run(owner) where outcome is null;
    create table mark(id integer primary key, run integer not null references run, path text not null,
        kind text not null, digest blob not null, fence integer not null, at integer not null, held text, sent text);
    create unique index mark_path on mark(run, path);
    create table answer(mark integer primary key references mark, at integer not null, body text not null,
        spent text not null, cached integer not null default 0, exactness text, by_route text not null);
    create table attempt(id integer primary key, mark integer not null references mark, fence integer not null,
        at integer not null, held text not null, sent text, lost text not null, ended text not null,
        handed_out integer not null);
    create index attempt_mark on attempt(mark);
    create table deposit(id integer primary key, run integer not null references run, kind text not null,
        body text not null, principal text not null, via text not null, client text not null,
        at integer not null, taken integer);
    create index deposit_waiting on deposit(run) where taken is null;
    create table note(run integer not null references run, text text not null, unique(run, text));
    create table text(hash text primary key, body text not null);
    create table ask(nonce text primary key, run integer not null references run, keys text not null,
        principal text not null, client text not null, at integer not null, consumed integer);
    create index ask_run on ask(run);
    """,
    f"""
    create table ledger(id integer primary key, parent integer references account, scope text not null,
        name text, period text, {_CHECKED_COLUMNS}) strict;
    insert into ledger(id, parent, scope, period, {_AMOUNTS}) select id, parent, scope, period, {_AMOUNTS} from account;
    drop table account;
    alter table ledger rename to account;
    create unique index account_period on account(scope, name, period) where period is not null;
    alter table mark add column shared text;
    alter table attempt add column shared text;
    alter table run add column resume_at integer;
    create index run_resume on run(resume_at) where resume_at is not null;
    create table memory(run integer not null references run, name text not null, body text not null,
        primary key(run, name)) without rowid;
    create table approval(mark integer not null references mark, n integer not null,
        run integer not null references run, key text not null, tool text not null, effect text not null,
        digest text not null, preview text not null, base text not null, asked_at integer not null,
        expires_at integer not null, verdict text, by text, through text, client text, feedback text,
        decided_at integer, primary key(mark, n), unique(run, key));
    create index approval_waiting on approval(expires_at) where verdict is null;
    create table definition(source text not null, name text not null, hash text not null, body text not null,
        state text not null, at integer not null, by text not null, primary key(source, name, hash));
    create table mandate(principal text not null, id text not null, body text not null, digest text not null,
        goal_hash text not null, saved_at integer not null, last_due integer, primary key(principal, id))
        without rowid;
    alter table run add column mandate text;
    create index run_mandate on run(principal, mandate) where mandate is not null;
    create unique index run_mandate_open on run(principal, mandate) where mandate is not null and outcome is null;
    """,
    """
    create unique index account_within on account(parent, name) where parent is not null;
    """,
    f"""
    update run set workspace = '' where workspace is null;
    alter table run add column seq integer not null default 0;
    alter table run add column news_seq integer not null default 0;
    drop index run_key;
    create unique index run_key on run(principal, workspace, key) where key is not null;
    create table request(id integer primary key, run integer not null references run,
        mark integer not null references mark, session text not null, nonce text, at integer not null,
        bound text not null, ended text, ended_at integer, charged integer);
    create index request_run on request(run);
    create index request_mark on request(mark);
    alter table account add column mistaken integer;
    alter table approval add column unasked integer not null default 0;
    create index approval_unasked on approval(run) where unasked;
    create index run_place on run(principal, workspace);
    create table standing_order(principal text not null, workspace text, id text not null, body text not null,
        digest text not null, goal_hash text not null, saved_at integer not null, last_due integer);
    insert into standing_order select principal, iif(json_valid(body) and body ->> '$.workspace' like '/%',
        body ->> '$.workspace', null), id, body, digest, goal_hash, saved_at, last_due from mandate;
    drop table mandate;
    alter table standing_order rename to mandate;
    create unique index mandate_id on mandate(principal, id, workspace);
    drop index run_mandate;
    create index run_mandate on run(principal, mandate, workspace) where mandate is not null;
    drop index run_mandate_open;
    create unique index run_mandate_open on run(principal, mandate, workspace)
        where mandate is not null and outcome is null;
    alter table account add column workspace text;
    update account set workspace = (select mandate.workspace from mandate join account as day
        on mandate.principal = day.name where day.id = account.parent and mandate.id = account.name)
        where scope = 'mandate';
    drop index account_within;
    create unique index account_within on account(parent, name, coalesce(workspace, '')) where parent is not null;
    alter table owner add column serves text;
    {_SEQ}
    """,
    # The route of what the server does itself was called "house". In `sent` no other key has that name, and no text
    # looks like it, since its quotes are escaped.
    """
    update run set route = 'server', spec = iif(json_valid(spec), json_set(spec, '$.route', 'server'), spec)
        where route = 'house';
    update mark set sent = replace(sent, '"route":"house"', '"route":"server"') where sent like '%"route":"house"%';
    update attempt set sent = replace(sent, '"route":"house"', '"route":"server"') where sent like '%"route":"house"%';
    update answer set by_route = 'server' where by_route = 'house';
    """,
    # What a look at a run costs no longer grows with its steps, nor the first call of a day with all steps of the file.
    f"""
    create table waiting(run integer not null references run, mark integer not null references mark,
        primary key(run, mark)) without rowid;
    insert into waiting select run, mark.id from mark left join answer on answer.mark = mark.id
        where answer.mark is null and coalesce((select handed_out from attempt where attempt.mark = mark.id
            order by attempt.id desc limit 1), mark.held is null);
    create trigger mark_waits after insert on mark when new.held is null begin
        insert into waiting values (new.run, new.id);
    end;
    create trigger attempt_waits after insert on attempt when new.handed_out begin
        insert into waiting select run, id from mark where id = new.mark
            and not exists (select 1 from answer where mark = new.mark) on conflict do nothing;
    end;
    create trigger attempt_begins after insert on attempt when not new.handed_out begin
        delete from waiting where run = {_RUN_OF_MARK} and mark = new.mark;
    end;

    create index mark_run on mark(run);
    create index mark_shared on mark(shared) where shared is not null;
    create index mark_unpriced on mark(run) where {UNPRICED};
    alter table attempt add column run integer references run;
    update attempt set run = (select run from mark where id = attempt.mark);
    create trigger attempt_of_run after insert on attempt begin
        update attempt set run = {_RUN_OF_MARK} where id = new.id;
    end;
    create index attempt_run on attempt(run);
    create index attempt_unpriced on attempt(run) where {UNPRICED};
    create index attempt_shared on attempt(shared) where shared is not null;
    create index request_charged on request(run) where charged is not null;

    alter table run add column cached integer not null default 0;
    alter table run add column exactness text not null default '';
    update run set cached = (select coalesce(sum(cached), 0) from mark join answer on answer.mark = mark.id
            where run = run.n and kind <> 'call'),
        exactness = (select coalesce(group_concat(exactness || ',', ''), '') from (select distinct exactness
            from mark join answer on answer.mark = mark.id
            where run = run.n and kind <> 'call' and exactness is not null));
    drop trigger answer_insert_seq;
    create trigger answer_insert_seq after insert on answer begin
        delete from waiting where run = {_RUN_OF_MARK} and mark = new.mark;
        update run set seq = seq + 1, cached = cached + new.cached, exactness = exactness || case
                when new.exactness is null or instr(exactness, new.exactness || ',') then ''
                else new.exactness || ',' end
            where n = {_RUN_OF_MARK};
    end;
    """,
    # Nor does the question whether a run that left a provider's route holds that provider's own content.
    f"create index mark_of_provider on mark(run) where {OF_PROVIDER};",
    # A person's approval may hold for further calls.
    """
    create table rule(id integer primary key, principal text not null, workspace text not null, folder text,
        run integer references run, tool text not null, pin text not null, covered text not null,
        approved_in text not null, key text not null, at integer not null, by text not null, through text not null,
        client text not null, removed integer);
    create index rule_place on rule(principal, workspace, tool) where removed is null;
    create index rule_run on rule(run) where run is not null;
    create index rule_approval on rule(approved_in, key);
    alter table approval add column shape text;
    """,
    # Whoever answers a step is shown the notes that came after it. Those of older files count as known.
    "alter table note add column step integer not null default 0;",
    # A call may be answered with an MCP task.
    """
    create table task(id integer primary key, run integer not null references run, n integer not null,
        client text not null, answered text not null, attached integer not null, skipped text not null,
        created_at integer not null, fetched_at integer, cancelled_at integer, ended_at integer, ending text,
        result text);
    create unique index task_of_run on task(run, n);
    alter table ask add column state text;
    """,
    # A folder may be on some machines alone; and of several servers that a client is connected to, one asks it.
    """
    alter table run add column place text;
    alter table mandate add column place text;
    create table push(run integer not null references run, key text not null, owner integer not null,
        client text not null, at integer not null, primary key(run, key)) without rowid;
    """,
    # What a file may hold that nobody reads unasked is for the person who decides alone.
    "alter table approval add column private_preview text;",
    # What a request costs bounds the requests of later runs that begin alike.
    """
    create table prefix(mark integer primary key references mark, principal text not null, digest blob not null,
        tokens integer not null);
    create index prefix_newest on prefix(principal, mark);
    """,
)


def migrate(session: SqliteSession) -> None:
    """Migrate the file to the newest version, in one transaction.

    Raises StoreTooNew for a newer file, StoreCorrupt for one whose tables are not those of its version.
    """
    if _read_version(session) == len(MIGRATIONS):
        return
    session.execute("begin immediate")
    version = _read_version(session)
    try:
        for statements in MIGRATIONS[version:]:
            session.execute(statements)
        session.execute(f"pragma user_version = {len(MIGRATIONS)}")
    except apsw.SQLError as error:
        session.execute("rollback")
        raise _wrong_version_error(version) from error
    except BaseException:
        session.execute("rollback")
        raise
    session.execute("commit")


def _read_version(session: SqliteSession) -> int:
    version = session.pragma("user_version")
    assert isinstance(version, int)
    if version < 0:
        raise _wrong_version_error(version)
    if version > len(MIGRATIONS):
        raise StoreTooNew(
            f"The state file has version {version}; this program knows {len(MIGRATIONS)}.",
            "Install the newer kairos-mcp that wrote it, or name another folder with --home.",
        )
    return version


def _wrong_version_error(version: int) -> StoreCorrupt:
    return StoreCorrupt(
        f"The state file says that it has version {version}, but its tables are not those.",
        "Stop the servers, copy the state folder, then move the file away: the next start makes a new one.",
    )


@lru_cache(maxsize=1)
def list_text_columns() -> Mapping[str, list[str]]:
    """Return by table every column that may hold a hash of a text, except the texts' own primary key."""
    with _fresh_tables() as fresh:
        return {
            table: [
                name
                for (name, kind) in fresh.rows("select name, lower(type) from pragma_table_info(?)", (table,))
                if kind != "integer" and (table, name) != ("text", "hash")
            ]
            for (table,) in fresh.rows("select name from sqlite_master where type = 'table'")
        }


@lru_cache(maxsize=1)
def list_references() -> Mapping[str, list[tuple[str, str]]]:
    """Return for each table the columns of other tables that refer to its rows."""
    found: dict[str, list[tuple[str, str]]] = {}
    with _fresh_tables() as fresh:
        for (table,) in fresh.rows("select name from sqlite_master where type = 'table'"):
            for referred, column in fresh.rows('select "table", "from" from pragma_foreign_key_list(?)', (table,)):
                found.setdefault(referred, []).append((table, column))
    return found


class Table(NamedTuple):
    """A table: its columns, and the one whose integers are given by the store. `is_ordered`: its rows keep the order in
    which they were inserted."""

    name: str
    columns: list[str]
    key: str | None
    is_ordered: bool


def list_tables() -> list[Table]:
    """Return the tables of this version."""
    with _fresh_tables() as fresh:
        made = fresh.rows("select name, sql from sqlite_master where type = 'table' order by rowid")
        columns = {name: fresh.rows("select name from pragma_table_info(?)", (name,)) for name, _ in made}
    return [
        Table(
            name,
            [column for (column,) in columns[name]],
            integer_key(name) if f"{integer_key(name)} integer primary key" in sql else None,
            not sql.endswith("without rowid"),
        )
        for name, sql in made
    ]


def integer_key(table: str) -> str:
    """Return the column with the integer key of a table that others refer to."""
    return "n" if table == "run" else "id"


def list_statements() -> list[tuple[str, str]]:
    """Return the kind (table, index, trigger) and the statement of all that this version makes, in its order."""
    with _fresh_tables() as fresh:
        made = fresh.rows("select type, sql from sqlite_master where sql is not null order by rowid")
    return [(kind, " ".join(statement.split())) for kind, statement in made]


@contextmanager
def _fresh_tables() -> Iterator[SqliteSession]:
    """Open a store in memory with the tables of this version."""
    fresh = SqliteSession(":memory:")
    try:
        migrate(fresh)
        yield fresh
    finally:
        fresh.close()


def schema_differences(session: Session) -> list[str]:
    """List the tables and indexes of this version that the file lacks or has otherwise; further ones do no harm."""
    with _fresh_tables() as fresh:
        expected, found = _schema_statements(fresh), _schema_statements(session)
    return [
        f"{kind} {name} is {'missing' if (kind, name) not in found else 'not as this version makes it'}"
        for (kind, name), statement in expected.items()
        if found.get((kind, name)) != statement
    ]


def _schema_statements(session: Session) -> dict[tuple[str, str], str]:
    statements = session.rows("select type, name, sql from sqlite_master where sql is not null order by type, name")
    return {(kind, name): " ".join(sql.split()) for kind, name, sql in statements}
