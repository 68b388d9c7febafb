"""The record: one SQLite file that says what was asked, answered, held and spent. No thinking lives here."""
