"""Watch that whoever writes beside others writes rows of a run only under the lock of that run.

The triggers write down what was written otherwise; raised errors would have the writer try again alone. What a test
writes by itself, in no group, is not looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kairos_mcp.store.postgres.locks import WRITERS_LOCK

if TYPE_CHECKING:
    from kairos_mcp.store.postgres.session import PostgresSession

_OF_RUN = {
    "run": "row.n",
    **dict.fromkeys(
        (
            "step",
            "inbox",
            "note",
            "client_completion",
            "client_question",
            "pushed_request",
            "tool_intent",
            "approval",
            "task",
            "waiting",
        ),
        "row.run",
    ),
    **dict.fromkeys(("answer", "attempt"), "(select run from step where id = row.step)"),
    "account": "(select n from run where account = row.id)",
}
_WATCH = f"""
    create function watch_{{table}}() returns trigger language plpgsql as $$
    declare row record; number bigint; me text;
    begin
        if tg_op = 'DELETE' then row := old; else row := new; end if;
        number := {{run}};
        me := (pg_current_xact_id()::text::bigint % 4294967296)::text;
        if number is not null and not exists (select 1 from run where n = number and me in (xmin::text, xmax::text))
            and exists (select 1 from pg_locks where pid = pg_backend_pid() and locktype = 'advisory'
                and objid::bigint = {WRITERS_LOCK} and mode = 'ShareLock')
        then insert into unlocked values ('{{table}}', number); end if;
        return row;
    end $$
"""


def watch_locks(session: PostgresSession) -> None:
    """Have all that is written from now on looked at."""
    session.rows("create table unlocked(name text, run bigint)")
    for table, run in _OF_RUN.items():
        session.rows(_WATCH.format(table=table, run=run))
        session.rows(
            f"create trigger watch_{table} before insert or update or delete on {table}"
            f" for each row execute function watch_{table}()"
        )


def find_unlocked(session: PostgresSession) -> list[str]:
    """Say what was written without a lock; nothing where nobody watches."""
    if session.row("select to_regclass('unlocked')") == (None,):
        return []
    found = session.rows("select distinct name, run from unlocked order by 1, 2")
    return [f"{name} of run {run} was written without its lock" for name, run in found]
