"""A policy as the journal keeps it, so that a resumed rollout goes on under the terms it was opened with."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from pydantic import TypeAdapter, ValidationError

from fleetctl.errors import JournalDamaged
from fleetctl.model.fleet import Json
from fleetctl.model.policy import RolloutPolicy


@cache
def _adapter() -> TypeAdapter[RolloutPolicy]:
    return TypeAdapter(RolloutPolicy)


def policy_to_json(policy: RolloutPolicy) -> Mapping[str, Json]:
    dumped: Mapping[str, Json] = _adapter().dump_python(policy, mode="json")
    return dumped


def policy_from_json(kept: Mapping[str, Json]) -> RolloutPolicy:
    """JournalDamaged if it is not one that this program knows."""
    try:
        return _adapter().validate_python(kept)
    except ValidationError as error:
        raise JournalDamaged(
            f"the rollout's policy in the journal can't be read: {error.errors()[0]['msg']}"
        ) from error
