"""The probe's line of JSON, found among whatever a login shell or sudo printed around it."""

from __future__ import annotations

import json

from fleetctl.model.node_facts import RawFacts
from fleetctl.model.reading import Reading, unknown, value_of
from fleetctl.parse.raw import one_line

SCHEMA = 1


def read_probe(stdout: str) -> Reading[RawFacts]:
    for line in reversed(stdout.splitlines()):
        if not line.startswith("{"):
            continue
        try:
            facts = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(facts, dict) and "schema" in facts:
            if facts["schema"] != SCHEMA:
                return unknown(f"the probe speaks schema {facts['schema']!r}, this program {SCHEMA}")
            return value_of(facts)
    return unknown(f"no probe result in the answer: {one_line(stdout[-400:])!r}")
