"""The name and the nonce of a new rollout."""

from __future__ import annotations

import secrets
from datetime import datetime

import sqlalchemy as sa

from fleetctl.store import tables
from fleetctl.store.database import Database

# Read aloud at night: without letters that look or sound like others.
_LETTERS = "23456789abcdefghjkmnpqrstuvwxyz"


def new_name(database: Database, now: datetime) -> str:
    """`r-YYYYMMDD-xx`, not taken in this database; the journal's first append settles it."""
    day = f"r-{now:%Y%m%d}-"
    names = tables.rollouts.c.name
    with database.read() as connection:
        taken = set(connection.execute(sa.select(names).where(names.startswith(day))).scalars())
    length = 2
    while True:
        for _ in range(20):
            name = day + "".join(secrets.choice(_LETTERS) for _ in range(length))
            if name not in taken:
                return name
        length += 1  # a very busy day


def new_nonce() -> str:
    """What makes a mark ours though another database may have a rollout of the same name."""
    return secrets.token_hex(4)
