"""The lab as any site: hosts.yml, group_vars, fleet.yml, ansible.cfg and the site's own power-cycle command.

Files that are there stay: they declare the fleet, and people edit them.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from fleetctl.lab.driver_image import DRIVER_VERSION
from fleetctl.lab.layout import GPUS_PER_NODE
from fleetctl.lab.machine_files import repository_uri
from fleetctl.lab.repository import DEFAULT_COMPONENTS, KEY_FILE, SUITE
from fleetctl.lab.slurm_config import PARTITIONS

if TYPE_CHECKING:
    from pathlib import Path

    from fleetctl.lab.layout import Lab


def write_inventory(lab: Lab) -> None:
    """Write what is missing of the lab's inventory."""
    _write_yaml(lab.inventory / "hosts.yml", _hosts(lab), "Machines of the lab and how to reach them.")
    _write_yaml(
        lab.inventory / "group_vars" / "all.yml", _connection(lab), "Host keys are known in advance and checked."
    )
    _write_yaml(
        lab.inventory / "group_vars" / "gpu_nodes.yml",
        _declared(lab),
        "Declared versions: change these, then roll out.",
    )
    _write_yaml(
        lab.inventory / "fleet.yml", _policy(lab), "How changes may be rolled out here. Times are short: a lab."
    )
    _write(
        lab.directory / "ansible.cfg",
        f"[defaults]\ninventory = inventory/{lab.name}\nhost_key_checking = True\n"
        "# fleet.yml is policy, not inventory: Ansible would read every file there.\n"
        "inventory_ignore_patterns = ^fleet\\.yml$\n",
    )
    _write(lab.directory / "bin" / "power-cycle", _power_cycle(lab), 0o755)


def _hosts(lab: Lab) -> dict[str, Any]:
    nodes = {node.name: {"ansible_host": node.address, "rack": node.rack} for node in lab.nodes}
    heads = {lab.head.name: {"ansible_host": lab.head.address}}
    return {"all": {"children": {"slurm_head": {"hosts": heads}, "gpu_nodes": {"hosts": nodes}}}}


def _connection(lab: Lab) -> dict[str, Any]:
    known = shlex.quote(f"UserKnownHostsFile={lab.known_hosts}")
    return {
        "ansible_user": "fleet",
        "ansible_ssh_private_key_file": str(lab.ssh_key),
        "ansible_ssh_common_args": f"-o {known} -o StrictHostKeyChecking=yes",
        "ansible_python_interpreter": "/usr/bin/python3",
    }


def _declared(lab: Lab) -> dict[str, Any]:
    return {
        "ansible_become": True,
        "nvidia_driver_version": DRIVER_VERSION,
        "nvidia_driver_flavour": "open",
        "nvidia_driver_source": "nvidia",
        "nvidia_driver_gpu_count": GPUS_PER_NODE,
        "nvidia_driver_repository": {
            "uri": repository_uri(lab),
            "suites": [SUITE],
            "components": list(DEFAULT_COMPONENTS),
            "key": str(lab.repository / "public" / KEY_FILE),
        },
        # The driver was installed and held by hand before any role came here.
        "nvidia_driver_adopt_holds": True,
    }


def _policy(lab: Lab) -> dict[str, Any]:
    return {
        "schedulers": {"slurm": {"via": f"ssh://{lab.head.name}", "partitions": list(PARTITIONS)}},
        "nodes": "gpu_nodes",
        "failure_domains": {"rack": "rack"},
        "rollout": {
            "canary": 1,
            "soak_min": 0.1,
            "max_unavailable": 3,
            "max_unavailable_per": {"rack": 2},
            "max_failures": 3,
            "on_failed_verify": "roll_back",
            "drain_timeout_h": 1,
            "limits_min": {"restarting": 1.5},
            "poll_s": 2,
        },
        # With the lab goes what is remembered of it: its next machines are others.
        "state_url": f"sqlite:///{lab.directory / 'state' / 'journal.db'}",
        "power_cycle": [str(lab.directory / "bin" / "power-cycle")],
    }


def _power_cycle(lab: Lab) -> str:
    faults = shlex.quote(str(lab.faults_of(lab.head).parent))
    return f"""\
#!/bin/sh
# power-cycle NODE, or with FLEETCTL_NODE set: what ipmitool or a BMC would do on a real site.
set -eu
node=${{1:-${{FLEETCTL_NODE:?usage: power-cycle NODE}}}}
faults={faults}/$node
case $node in
    *[!a-z0-9-]*) echo "power-cycle: $node is no node of this lab" >&2; exit 2 ;;
esac
[ -d "$faults" ] || {{ echo "power-cycle: $node is no node of this lab" >&2; exit 2; }}
if [ -e "$faults/node-lost" ]; then echo "power-cycle: the BMC of $node does not answer" >&2; exit 1; fi
# A machine that hangs in its self-test comes up from a cold start, unless it is broken for good.
[ "$(cat "$faults/reboot-never-returns" 2> /dev/null)" = for-good ] || rm -f "$faults/reboot-never-returns"
export CONTAINERS_CONF={shlex.quote(str(lab.directory / "containers.conf"))}
podman stop --time 0 {lab.name}-"$node" > /dev/null
podman start {lab.name}-"$node" > /dev/null
"""


def _write_yaml(path: Path, content: dict[str, Any], title: str) -> None:
    import yaml

    _write(path, f"---\n# {title}\n{yaml.safe_dump(content, sort_keys=False, width=110)}")


def _write(path: Path, content: str, mode: int = 0o644) -> None:
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(mode)
