"""The composition root: a site's inventory and policy, and the adapters that act on it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fleetctl.adapters.slurm import Slurm
    from fleetctl.flows.acts.view import World
    from fleetctl.model.fleet import Json, Node
    from fleetctl.model.site import Site
    from fleetctl.ports import Component
    from fleetctl.store.inventory import Inventory
    from fleetctl.store.role_spec import RoleSpec


@dataclass(frozen=True, slots=True)
class OpenSite:
    """One site, read and checked. `nodes` are those that the command is about, with their declared variables."""

    site: Site
    inventory: Inventory
    specs: tuple[RoleSpec, ...]
    state_directory: Path

    def nodes(self, limit: str | None = None, exclude: str | None = None) -> tuple[Node, ...]:
        """The chosen nodes with checked, complete variables; SelectionError or InventoryError says what is wrong."""
        from fleetctl.store.declared_model import declare

        return declare(self.inventory, self.inventory.select(limit, exclude), self.specs)

    def override(self, component: Component, version: str) -> Mapping[str, Json]:
        """`--to VERSION` as the variable that the inventory would declare, checked like one."""
        from fleetctl.store.declared_model import check_override

        spec = next(spec for spec in self.specs if spec.role == component.role)
        return check_override(spec, {f"{component.role}_version": version})

    def scheduler(self) -> Slurm:
        """The site's scheduler; SchedulerError where fleet.yml names none."""
        from fleetctl.adapters.command import LocalCommand, SshCommand
        from fleetctl.adapters.slurm import Slurm
        from fleetctl.errors import SchedulerError

        slurm = self.site.slurm
        if slurm is None:
            raise SchedulerError(f"{self.site.directory / 'fleet.yml'} names no scheduler: add schedulers.slurm")
        if slurm.head is None:
            return Slurm(LocalCommand())
        return Slurm(SshCommand(self.inventory.reach(slurm.head)))

    def world(self, components: Sequence[Component]) -> World:
        """All ports of a rollout, on real nodes."""
        from fleetctl.adapters.ansible_changer import AnsibleChanger
        from fleetctl.adapters.ansible_run import AnsibleSettings
        from fleetctl.adapters.nodes import SshNodes
        from fleetctl.adapters.notify import HookNotifier
        from fleetctl.adapters.ssh import Ssh
        from fleetctl.adapters.testinfra import TestinfraVerifier
        from fleetctl.flows.acts.view import World
        from fleetctl.store.content import find_content, roles_path

        ssh = Ssh()
        content = find_content()
        roles = {component.name: component.role for component in components}
        settings = AnsibleSettings(
            state_directory=self.state_directory,
            inventory=(self.site.directory,),
            playbooks=content.playbooks,
            config=content.ansible_cfg,
            roles_path=roles_path(self.site.roles_path),
        )
        return World(
            scheduler=self.scheduler(),
            nodes=SshNodes(ssh),
            changer=AnsibleChanger(settings, roles),
            verifier=TestinfraVerifier(ssh, settings.roles_path, roles),
            notifier=HookNotifier(),
        )


def open_site(named: str | None = None, flags: Mapping[str, Any] | None = None, *, refresh: bool = False) -> OpenSite:
    """Read the site that is meant. `flags` are settings of fleet.yml's rollout section; None means not given."""
    from fleetctl.components import registry
    from fleetctl.store.content import roles_path
    from fleetctl.store.inventory import load_inventory
    from fleetctl.store.policy_file import read_policy
    from fleetctl.store.role_spec import read_spec
    from fleetctl.store.site import find_site, state_directory

    site = read_policy(find_site(named), flags or {}, os.environ)
    path = roles_path(site.roles_path)
    specs = tuple(read_spec(component.role, path) for component in registry.load().values())
    directory = state_directory(site)
    inventory = load_inventory(site, specs, directory, refresh=refresh)
    return OpenSite(site, inventory, specs, directory)
