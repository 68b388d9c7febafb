"""What lets a client in is the same on each server of a database: tokens, and the key that seals what clients carry."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from psycopg import errors
from support import postgres
from support.app import Place

from kairos_mcp.app.app import App, make_database
from kairos_mcp.core.errors import BadArguments, ConfigError, StoreUnavailable
from kairos_mcp.server.tokens import make_tokens
from kairos_mcp.settings.load import load_settings
from kairos_mcp.settings.settings import Flags, Settings
from kairos_mcp.store.postgres.connection import as_store_error
from kairos_mcp.store.postgres.refusals import explain_refusal

pytestmark = pytest.mark.postgres


def on_machine(name: str, place: Place, database: str) -> Settings:
    return place.settings(store=database, home=place.root / name)


async def test_a_token_of_one_server_counts_on_all_until_it_is_revoked(place: Place, database: str) -> None:
    first, second = (make_tokens(on_machine(name, place, database)) for name in ("one", "two"))
    assert not second.any()
    assert await second.look_up("") is None
    token = first.add("alice")
    found = await second.look_up(token)
    assert found is not None
    assert found.name == "alice"
    assert await second.look_up(token + "x") is None
    assert [each.name for each in second.list_tokens()] == ["alice"]
    with postgres.open_session(database) as session:
        ((stored,),) = session.rows("select hash from token")
    assert token.rpartition(".")[2] not in stored
    with pytest.raises(BadArguments):
        second.add("alice")
    second.revoke("alice")
    assert await first.look_up(token) is None
    with pytest.raises(BadArguments):
        first.revoke("alice")
    for tokens in (first, second):
        await tokens.close()


async def test_servers_that_need_the_sealing_key_at_once_have_the_same(place: Place, database: str) -> None:
    async def read_key(name: str) -> bytes:
        async with App.open(on_machine(name, place, database), via="mcp") as app:
            return await app.sealing_key()

    found = await asyncio.gather(*(read_key(f"machine-{n}") for n in range(8)))
    assert len(set(found)) == 1
    assert len(found[0]) == 32


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://u:s3cret99@db/k",
        "postgresql://db/k?password=s3cret99",
        "postgresql://db/k?sslpassword=s3cret99",
        "postgresql://u:s3cret99#%@db/k",
        "postgresql://u:s3cret99?x@db/k",
    ],
)
def test_a_password_in_the_address_is_refused_and_not_shown(address: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="store_password") as refused:
        load_settings(Flags(home=str(tmp_path)), {"KAIROS_STORE": address})
    assert "s3cret99" not in f"{refused.value.message} {refused.value.hint}"


def test_a_password_is_read_from_where_the_setting_says(
    place: Place, database: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The server here lets everybody in from its own machine, so what is seen is what the driver was given."""
    from kairos_mcp.store.postgres.connection import connect

    monkeypatch.delenv("DB_PASSWORD", raising=False)
    settings = load_settings(
        Flags(home=str(tmp_path)), {"KAIROS_STORE": database, "KAIROS_STORE_PASSWORD": "env:DB_PASSWORD"}
    )
    with pytest.raises(ConfigError, match="env:DB_PASSWORD"):
        make_database(settings, "test").open()
    monkeypatch.setenv("DB_PASSWORD", "s3cret99")
    store = make_database(settings, "test")
    store.open()
    assert "s3cret99" not in repr(store.describe())
    made = connect(database, settings.store_password)
    assert made.info.password == "s3cret99"
    made.close()


def test_an_address_where_no_server_is_fails_soon_and_names_the_setting(tmp_path: Path) -> None:
    settings = load_settings(Flags(home=str(tmp_path)), {"KAIROS_STORE": f"postgresql:///k?host={tmp_path}"})
    with pytest.raises(StoreUnavailable) as refused:
        make_database(settings, "test").open()
    assert "`store`" in refused.value.hint


@pytest.mark.parametrize(
    ("user", "address", "reason", "hint"),
    [
        ("nobody", "{server}", "it has no such user", "user in `store`"),
        ("postgres", "{server}_none", "no database of this name", "createdb"),
        ("postgres", "postgresql:///postgres?host=/none", "no server listens there", "host and the port"),
        ("postgres", "postgresql://127.0.0.1:1/postgres", "no server listens there", "host and the port"),
        ("postgres", "postgresql://none.invalid/postgres", "its host is not known", "host in `store`"),
    ],
)
def test_why_no_connection_is_made_is_said_without_names(
    place: Place, database: str, user: str, address: str, reason: str, hint: str
) -> None:
    """The library says it in a sentence that names hosts, users and files."""
    base, _, options = database.partition("?")
    where = address.replace("{server}_none", f"{base}_none?{options}").replace("{server}", database)
    settings = place.settings(store=where if user == "postgres" else f"{where}&user={user}")
    with pytest.raises(StoreUnavailable) as refused:
        make_database(settings, "test").check_server()
    assert reason in refused.value.message
    assert hint in refused.value.hint
    for name in ("/none", "none.invalid", "_none", "nobody"):
        assert name not in f"{refused.value.message} {refused.value.hint}"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ('connection to server at "10.0.0.3", port 5432 failed: timeout expired', "its host does not answer"),
        (
            'FATAL:  no pg_hba.conf entry for host "10.0.0.4", user "u", database "k", SSL off',
            "does not admit this user",
        ),
        ("failed: server does not support SSL, but SSL was required", "no encrypted connection"),
        ("failed: SSL error: certificate verify failed", "no encrypted connection"),
        ('failed to connect to host "certificates.corp"', "The database can't be reached."),
        ("Verbindung zum Server fehlgeschlagen", "The database can't be reached."),
    ],
)
def test_of_what_the_library_says_the_reason_alone_is_passed_on(said: str, reason: str) -> None:
    refused = explain_refusal(said)
    assert reason in refused.message
    assert "10.0.0" not in f"{refused.message} {refused.hint}"


def test_a_password_that_is_wrong_or_missing_is_said_so(place: Place, own_server: Any, tmp_path: Path) -> None:
    where = own_server.get_uri()
    with postgres.open_session(where) as session:
        session.rows("create role locked login password 's3cret99'")
        ((rules,),) = session.rows("show hba_file")
        rules_before = Path(rules).read_text()
        Path(rules).write_text(f"local all locked scram-sha-256\n{rules_before}")
        session.rows("select pg_reload_conf()")
    address = f"{where}&user=locked"
    wrong = tmp_path / "password"
    wrong.write_text("wrong")
    for password, reason in ((None, "it wants a password"), (f"file:{wrong}", "refused the user or the password")):
        settings = place.settings(store=address, store_password=password)
        with pytest.raises(StoreUnavailable, match=reason) as refused:
            make_database(settings, "test").check_server()
        assert "store_password" in refused.value.hint


@pytest.mark.parametrize(
    "error",
    [
        errors.OperationalError("consuming input failed: SSL connection has been closed unexpectedly"),
        errors.UndefinedFile('could not open file "base/1": No such file or directory'),
    ],
)
def test_a_connection_that_was_lost_is_not_taken_for_one_that_was_refused(error: Exception) -> None:
    assert as_store_error(error).message == "The database can't be reached."


@pytest.mark.parametrize(
    "address", ["postgresql://u:Tr#b%x9@h/db", "postgresql://u:ab?c%zz@h", "postgresql://h/d?a=%zz9"]
)
def test_what_can_not_be_read_of_an_address_is_not_quoted(place: Place, address: str) -> None:
    """It may be a password."""
    with pytest.raises(ConfigError) as refused:
        make_database(place.settings(store=address), "test").describe()
    for part in ("Tr", "%x9", "zz"):
        assert part not in f"{refused.value.message} {refused.value.hint}"
    assert refused.value.__suppress_context__


def test_a_host_that_is_no_name_is_an_error_of_the_settings(place: Place) -> None:
    with pytest.raises(ConfigError, match="host"):
        make_database(place.settings(store="postgresql://a..b/x"), "test").check_server()


def test_an_address_with_an_unknown_option_is_refused_by_its_name(place: Place) -> None:
    store = make_database(place.settings(store="postgresql://db/k?foo=bar"), "test")
    for look in (store.check_server, store.describe):
        with pytest.raises(ConfigError, match="no option foo") as refused:
            look()
        assert "postgresql://" in refused.value.hint


def test_a_user_who_may_make_no_tables_is_told_what_to_grant(place: Place, own_server: Any) -> None:
    where = own_server.get_uri()
    with postgres.open_session(where) as session:
        session.rows("create role reader login")
    store = make_database(place.settings(store=f"{where}&user=reader"), "test")
    with pytest.raises(StoreUnavailable, match="lacks a right") as refused:
        store.migrate()
    assert "Grant" in refused.value.hint
