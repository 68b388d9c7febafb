#!/bin/sh
# Backs up a database or a state folder of Kairos, checks the backup by restoring it, and removes old ones.
#
#   BACKUPS=/backups KAIROS_STORE=postgresql://kairos@db/kairos sh backup.sh
#   BACKUPS=/backups KAIROS_HOME=/state sh backup.sh
#
# BACKUPS: the folder of the backups.              KEEP: how many are kept; 14 if it is not set.
# KAIROS_STORE_PASSWORD: file:PATH or env:NAME, as for a server; or libpq's own PGPASSWORD, PGPASSFILE.
# pg_dump has to be of the database's version or a newer one: it refuses a newer database.
# CHECK_STORE: the address of an empty database, into which each dump is restored, counted, and removed again. Without it
# a dump is only read to its end. What is no row (workspaces, settings, keys) is backed up as files, elsewhere.
#
# Ends with 0 if the newest backup is good. It has its name only then, so a broken one never stands beside good ones.
set -eu
umask 077
: "${BACKUPS:?the folder of the backups}"
keep=${KEEP:-14}
at=$(date -u +%Y%m%dT%H%M%SZ)
mkdir -p "$BACKUPS"
new="$BACKUPS/.new-$at"
trap 'rm -rf "$new"' EXIT

case "${KAIROS_STORE_PASSWORD:-}" in
'') ;;
file:*) PGPASSWORD=$(cat "${KAIROS_STORE_PASSWORD#file:}") && export PGPASSWORD ;;
env:*)
    PGPASSWORD=$(printenv "${KAIROS_STORE_PASSWORD#env:}") || {
        echo "there is no variable ${KAIROS_STORE_PASSWORD#env:}, which KAIROS_STORE_PASSWORD names" >&2
        exit 1
    }
    export PGPASSWORD
    ;;
*)
    echo "KAIROS_STORE_PASSWORD has to be file:PATH or env:NAME here" >&2
    exit 1
    ;;
esac

ask() { psql --no-psqlrc --quiet --tuples-only --no-align --dbname "$1" --command "$2"; }
count='select (select count(*) from run), (select count(*) from answer), (select number from version)'

back_up_database() {
    schema=$(ask "$KAIROS_STORE" 'select quote_ident(current_schema())')
    before=$(ask "$KAIROS_STORE" "$count")
    pg_dump --format custom --no-owner --schema "$schema" --file "$new" "$KAIROS_STORE"
    pg_restore --file /dev/null "$new"
    if [ -n "${CHECK_STORE:-}" ]; then check_restore; fi
    mv "$new" "$BACKUPS/kairos-$at.dump"
    echo "kairos-$at.dump: runs, answers and version $before"
}

# Restores into the empty database, where at least as many rows have to be as there were before the dump.
check_restore() {
    if [ "$(ask "$CHECK_STORE" "select count(*) from pg_tables where tablename = 'run'")" != 0 ]; then
        echo "CHECK_STORE is not empty: it has runs, and would be emptied" >&2
        exit 1
    fi
    ask "$CHECK_STORE" "set client_min_messages = error; drop schema if exists $schema cascade"
    pg_restore --list "$new" | grep -q ' SCHEMA - ' || ask "$CHECK_STORE" "create schema $schema"
    pg_restore --exit-on-error --no-owner --dbname "$CHECK_STORE" "$new"
    restored=$(ask "$CHECK_STORE" "set search_path = $schema; $count")
    ask "$CHECK_STORE" "set client_min_messages = error; drop schema $schema cascade"
    for place in 1 2 3; do
        if [ "$(echo "$restored" | cut -d '|' -f $place)" -lt "$(echo "$before" | cut -d '|' -f $place)" ]; then
            echo "restored were $restored (runs, answers, version), and there were $before" >&2
            exit 1
        fi
    done
}

back_up_folder() {
    state=${KAIROS_HOME:-$HOME/.local/state/kairos-mcp}
    mkdir "$new"
    python3 -c 'import sqlite3, sys; sqlite3.connect(sys.argv[1]).backup(sqlite3.connect(sys.argv[2]))' \
        "$state/kairos.db" "$new/kairos.db"
    tar -C "$state" --exclude 'kairos.db*' --exclude owners --exclude server-caches -cf - . | tar -C "$new" -xf -
    kairos-mcp status --home "$new" --json >/dev/null
    python3 -c 'import sqlite3, sys
found = sqlite3.connect(sys.argv[1]).execute("pragma integrity_check").fetchone()[0]
sys.exit(0 if found == "ok" else found)' "$new/kairos.db"
    mv "$new" "$BACKUPS/kairos-$at"
    echo "kairos-$at"
}

if [ -n "${KAIROS_STORE:-}" ]; then back_up_database; else back_up_folder; fi

# The names sort by time.
ls -d "$BACKUPS"/kairos-* | sort -r | tail -n "+$((keep + 1))" | while read -r old; do
    rm -rf "$old"
    echo "removed $(basename "$old")"
done
