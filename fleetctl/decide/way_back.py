"""Whether nodes could come back to the packages they have now: what to ask about, and whom. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from fleetctl.components import truths
from fleetctl.decide.candidates import Terms, not_planned
from fleetctl.model.fleet import Node
from fleetctl.model.survey import Observation, Survey

_EPOCH = re.compile(r"^[0-9]+:")


@dataclass(frozen=True, slots=True)
class Question:
    """What the repositories of these nodes must still have; one answer is good for all of them."""

    packages: Mapping[str, Mapping[str, str]]
    """By role, the packages of the way back of which the nodes keep no file."""
    nodes: tuple[str, ...]
    doubt: str = ""
    """Why it is not known what the nodes keep; then only "nothing is lost" is an answer."""


def ask_for(survey: Survey, fleet: Mapping[str, Node], terms: Terms, roles: Mapping[str, str]) -> tuple[Question, ...]:
    """Questions for the nodes that a plan under these terms would change; `roles` by component.

    Their number grows with the kinds of nodes, not with the fleet: nodes that lack the same files, have the same
    release and repositories, and declare the same ones, share a question.
    """
    if terms.policy.on_failed_verify != "roll_back" or not survey.work.is_known:
        return ()
    work = survey.work.get()
    together: dict[str, tuple[Question, list[str]]] = {}
    for node, seen in survey.observed.items():
        if not_planned(node, seen, work.get(node), terms) is not None:
            continue
        facts, packages = seen.get().facts, _not_kept(seen.get(), roles)
        if packages:
            declared = [fleet[node].variables.get(f"{role}_repository") for role in roles.values()]
            kind = json.dumps([packages, facts.kept_packages.reason, facts.repositories, declared], sort_keys=True)
            asked = Question(packages, (), facts.kept_packages.reason)
            together.setdefault(kind, (asked, []))[1].append(node)
    return tuple(replace(asked, nodes=tuple(nodes)) for asked, nodes in together.values())


def _not_kept(found: Observation, roles: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """As roles/package_closure judges it: only a role whose packages are to change needs a way back."""
    names = {drift.component for drift in found.to_change if drift.truth == truths.PACKAGED}
    kept = found.facts.kept_packages.value or {}
    missing = {
        roles[name]: {
            package: version
            for package, version in closure.packages.items()
            if not {f"{package}={version}", f"{package}-{_EPOCH.sub('', version)}"} & kept.get(roles[name], frozenset())
        }
        for name, closure in found.closures.items()
        if name in names
    }
    return {role: packages for role, packages in missing.items() if packages}
