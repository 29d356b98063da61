"""Run as a program of its own: renders inventory variables with Ansible's templar, without any vault secret.

stdin:  {"listing": text of ansible-inventory --list, "directory": inventory directory,
         "wanted": {host: [variable, ...]}, "vaulted": [file encrypted as a whole, ...]}
stdout: {"values": {host: {variable: value}}, "problems": {host: {variable: [kind, text]}},
         "secrets": [names of variables that encrypted files define]}

The templar is never given a vault password, and what encrypted files define is taken away before rendering. So nothing
that it renders can hold a secret; a template that needs one fails, and that failure is its answer.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any


def main() -> int:
    request = json.load(sys.stdin)
    # Importing ansible.cli prepares the locale and the plugin paths, as for every command of Ansible.
    from ansible.cli import CLI  # noqa: PLC0415, RUF100
    from ansible.parsing.dataloader import DataLoader
    from ansible.parsing.vault import VaultSecretsContext
    from ansible.plugins.loader import init_plugin_loader

    init_plugin_loader()
    VaultSecretsContext.initialize(VaultSecretsContext([]))
    secrets = _secret_names(request["vaulted"], CLI, DataLoader())
    values, problems = _render(request, secrets, DataLoader())
    json.dump({"values": values, "problems": problems, "secrets": sorted(secrets)}, sys.stdout)
    return 0


def _secret_names(files: list[str], cli: Any, loader: Any) -> set[str]:
    """The names that files encrypted as a whole give; only here are vault passwords used."""
    from ansible import constants

    if not files:
        return set()
    identities = list(constants.DEFAULT_VAULT_IDENTITY_LIST)
    secrets = cli.setup_vault_secrets(loader, vault_ids=identities, auto_prompt=False, initialize_context=False)
    loader.set_vault_secrets(secrets)
    names: set[str] = set()
    for file in files:
        content = loader.load_from_file(file, cache="none", unsafe=True)
        names |= {str(name) for name in content} if isinstance(content, dict) else set()
    return names


def _render(request: Any, secrets: set[str], loader: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    from ansible.errors import AnsibleError
    from ansible.template import Templar
    from ansible.vars.hostvars import HostVars
    from ansible.vars.manager import VariableManager

    inventory, hostvars = _rebuild(request, secrets, loader)
    manager = VariableManager(loader=loader, inventory=inventory)
    # The listing is complete: no group_vars of the working directory on top of it.
    manager.safe_basedir = False
    HostVars(inventory, manager, loader)  # makes itself known to the manager, as the magic variable
    values: dict[str, Any] = {}
    problems: dict[str, Any] = {}
    for name, variables in request["wanted"].items():
        context = manager.get_vars(host=inventory.get_host(name))
        templar = Templar(loader=loader, variables=context)
        for variable in variables:
            if variable not in hostvars[name]:
                continue
            try:
                # Through JSON: what can't be plain data is no declared value.
                rendered = json.loads(json.dumps(templar.template(hostvars[name][variable])))
                values.setdefault(name, {})[variable] = rendered
            except (AnsibleError, TypeError, ValueError) as exc:
                problems.setdefault(name, {})[variable] = _problem(exc, secrets)
    return values, problems


def _rebuild(request: Any, secrets: set[str], loader: Any) -> tuple[Any, dict[str, Any]]:
    """The inventory that the listing came from, so that magic variables (groups, hostvars, ...) are Ansible's own."""
    from ansible.inventory.manager import InventoryManager
    from ansible.module_utils.common.json import get_decoder
    from ansible.template import trust_as_template

    # The decoder gives each string the trust that it had: what a source marked as unsafe stays unrendered.
    listing = json.loads(trust_as_template(request["listing"]), cls=get_decoder("inventory_legacy"))
    manager = InventoryManager(loader=loader, sources=None, parse=False)
    data = manager._inventory
    data.current_source = request["directory"]
    meta = listing.pop("_meta")
    for group in listing:
        data.add_group(group)
    for group, content in listing.items():
        for host in content.get("hosts", ()):
            data.add_host(host, group)
        for child in content.get("children", ()):
            data.add_group(child)
            data.add_child(group, child)
    hostvars = {}
    for host, variables in meta["hostvars"].items():
        hostvars[host] = {name: value for name, value in variables.items() if name not in secrets}
        for name, value in hostvars[host].items():
            data.set_variable(host, name, value)
    return manager, hostvars


def _problem(exc: BaseException, secrets: set[str]) -> list[str]:
    """What kind of thing the template lacks, and Ansible's words for it."""
    from ansible.errors import AnsibleUndefinedVariable

    chain: list[BaseException] = []
    link: BaseException | None = exc
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or link.__context__
    # AnsibleVaultError, and the templar's own UndecryptableVaultError.
    if any("Vault" in type(item).__name__ for item in chain):
        return ["secret", "it needs a value that is encrypted with Ansible Vault"]
    if any(isinstance(item, AnsibleUndefinedVariable) for item in chain):
        missing = re.match(r"'(\w+)' is undefined", str(exc))
        if missing and missing[1] in secrets:
            return ["secret", f"it needs {missing[1]}, which is encrypted with Ansible Vault"]
        return ["undefined", str(exc)]
    return ["template", str(exc)]


if __name__ == "__main__":
    sys.exit(main())
