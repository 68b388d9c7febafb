"""The advisory locks of a database, by their numbers, and the channel on which commits are made known."""

MIGRATION_LOCK = 0x6B616974  # of whoever makes or changes the tables: "kait"
WRITERS_LOCK = 0x6B616972  # of all transactions that write: "kair"
SERVERS_LOCK = 0x6B61  # the class of the locks that living servers hold, each under a key of its own: "ka"
CHANNEL = "kairos"
