"""The components that this installation knows: ours by name, others by the entry point group `fleetctl.components`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import TYPE_CHECKING

from fleetctl.errors import BadInput

if TYPE_CHECKING:
    from fleetctl.ports import Component

# In the order in which a person reads them. A class without arguments, imported only when it is asked for.
_OURS = {
    "driver": "fleetctl.components.driver:Driver",
    "fabric_manager": "fleetctl.components.fabric_manager:FabricManager",
}
_GROUP = "fleetctl.components"


@cache
def _targets() -> Mapping[str, str]:
    targets = dict(_OURS)
    for point in entry_points(group=_GROUP):
        if point.name in targets:
            raise BadInput(f"two packages bring a component named {point.name}: {targets[point.name]}, {point.value}")
        targets[point.name] = point.value
    return MappingProxyType(targets)


def names() -> tuple[str, ...]:
    return tuple(_targets())


@cache
def by_name(name: str) -> Component:
    """One component. Raises BadInput for a name that nobody registered."""
    target = _targets().get(name)
    if target is None:
        raise BadInput(f"no component named {name!r}; there are {', '.join(names())}")
    module, _, attribute = target.partition(":")
    found: Component = getattr(import_module(module), attribute)()
    return found


def load() -> Mapping[str, Component]:
    """All components by name."""
    return MappingProxyType({name: by_name(name) for name in names()})


def with_followers(chosen: tuple[str, ...]) -> tuple[str, ...]:
    """The chosen components and those that move with them, each once, in the registry's order."""
    wanted = set(chosen)
    for name in chosen:
        wanted |= by_name(name).moves_with
    return tuple(name for name in names() if name in wanted)
