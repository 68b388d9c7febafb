"""Functions and own tables of a database are compared with this version's, named by doctor, renewed by a migration."""

from __future__ import annotations

from support.app import Place
from support.operators import Command
from support.postgres import on_database

from kairos_mcp.store.postgres.check import find_missing

OTHER = """
    create or replace function iif(is_so boolean, one bigint, other bigint) returns bigint
        language sql immutable parallel safe as $$ select other $$
"""


@on_database
def test_what_is_not_as_this_version_makes_it_is_named_shown_and_renewed(place: Place, command: Command) -> None:
    def missing() -> list[str]:
        with place.session() as session:
            return find_missing(session)

    assert missing() == []
    assert command.json("store", "migrate", "--dry-run")["statements"] == []
    place.rows(OTHER)
    place.rows("alter table token drop column used_at")
    assert [text.split(" is ")[0] for text in missing()] == ["function iif", "table token"]
    planned = command.json("store", "migrate", "--dry-run")
    assert (planned["before"], len(planned["statements"])) == (1, 2)
    assert len(missing()) == 2  # nothing was changed
    assert command.json("store", "migrate") == {"before": 1, "version": 1, "statements": 2}
    assert missing() == []
    assert place.rows("select iif(true, 1, 2)") == [(1,)]
