"""The tables of the journal's database. A change here raises SCHEMA."""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, Index, Integer, MetaData, String, Table, Text

SCHEMA = 1

metadata = MetaData()

schema = Table("schema_version", metadata, Column("version", Integer, nullable=False))

# `length` and `last_hash` say where the chain of events ends: a lost end would look like a shorter journal.
rollouts = Table(
    "rollouts",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("site", String(255), nullable=False, index=True),
    Column("length", Integer, nullable=False),
    Column("last_hash", String(64), nullable=False),
)

# Everything that is known of a rollout. Clustered by its key: a replay reads the file from one end to the other.
events = Table(
    "events",
    metadata,
    Column("rollout", String(64), ForeignKey("rollouts.name"), primary_key=True),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("epoch", Integer, nullable=False),
    Column("payload", Text, nullable=False),
    Column("hash", String(64), nullable=False),
    sqlite_with_rowid=False,
)

# One row per site, never removed: its epoch only grows. No rollout: nobody runs one there now, and the owner is who ran
# the last.
locks = Table(
    "locks",
    metadata,
    Column("site", String(255), primary_key=True),
    Column("epoch", Integer, nullable=False),
    Column("rollout", String(64), nullable=False),
    Column("owner", String(255), nullable=False),
    Column("host", String(255), nullable=False),
    Column("machine", String(255), nullable=False),
    Column("pid", Integer, nullable=False),
    Column("started_ticks", Integer, nullable=False),
    Column("started_at", String(40), nullable=False),
    Column("heartbeat_at", String(40), nullable=False),
)

requests = Table(
    "requests",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("rollout", String(64), ForeignKey("rollouts.name"), nullable=False),
    Column("verb", String(16), nullable=False),
    Column("nodes", Text, nullable=False),
    Column("by", String(255), nullable=False),
    Column("why", Text, nullable=False),
    Column("at", String(40), nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("taken_at", String(40)),
    Index("requests_of_rollout", "rollout", "taken_at"),
)
