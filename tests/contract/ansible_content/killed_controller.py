"""A controller that test_ansible.py kills: applies to one node and prints when the first task has run."""

import asyncio
import json
import sys
from pathlib import Path

from fleetctl.adapters.ansible_changer import AnsibleChanger
from fleetctl.adapters.ansible_run import AnsibleSettings
from fleetctl.model.fleet import Connection, Node
from fleetctl.model.node_facts import Lease
from fleetctl.model.rollout import Course
from fleetctl.ports import Change

terms = json.loads(sys.argv[1])
content = Path(terms["content"])
settings = AnsibleSettings(
    Path(terms["state"]), (Path(terms["inventory"]),), content, content / "ansible.cfg", (content / "roles",)
)
node = Node(terms["name"], Connection(**terms["connection"]), terms["name"])
changer = AnsibleChanger(settings, {"driver": "demo"})
asyncio.run(changer.apply(node, Change(("driver",), Course.FORWARD), Lease(*terms["lease"])))
