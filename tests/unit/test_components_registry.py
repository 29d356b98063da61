"""Which components there are, and who is asked for them."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from fleetctl.components import registry
from fleetctl.errors import BadInput


@pytest.fixture(autouse=True)
def _forget() -> Any:
    registry._targets.cache_clear()
    registry.by_name.cache_clear()
    yield
    registry._targets.cache_clear()
    registry.by_name.cache_clear()


def test_every_component_answers_to_its_name() -> None:
    for name, component in registry.load().items():
        assert component.name == name
        assert component.moves_with <= set(registry.names())
        assert component.requires <= set(registry.names())


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(BadInput, match="driver, fabric_manager"):
        registry.by_name("drivers")


def test_what_moves_with_a_component_is_taken_along_once() -> None:
    assert registry.with_followers(("driver",)) == ("driver", "fabric_manager")
    assert registry.with_followers(("fabric_manager", "driver")) == ("driver", "fabric_manager")
    assert registry.with_followers(("fabric_manager",)) == ("fabric_manager",)


def test_other_packages_bring_components_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("mine", "fleetctl.components.driver:Driver", "fleetctl.components")
    monkeypatch.setattr(registry, "entry_points", lambda group: [point] if group == "fleetctl.components" else [])
    assert registry.names()[-1] == "mine"
    assert registry.by_name("mine").role == "nvidia_driver"


def test_two_packages_with_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("driver", "elsewhere:Driver", "fleetctl.components")
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    with pytest.raises(BadInput, match="two packages"):
        registry.names()


def test_the_registry_imports_no_component_until_asked() -> None:
    code = (
        "import sys; from fleetctl.components import registry; registry.names();"
        "sys.exit(any(name.startswith('fleetctl.components.d') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
