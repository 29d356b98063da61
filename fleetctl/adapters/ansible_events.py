"""What the events of one Ansible run say of each of its nodes. No I/O: events in, verdicts out.

Order of judgement: unreachable, then failed, then finished; a node that is none of these when the run is over is
unknown. The run's own status and exit code say nothing about one node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from fleetctl.adapters.ansible_reason import is_lock_held, lease_refusal, one_line, reason_of, signature_of
from fleetctl.ports import Applied

MARKER = "fleetctl finished"
"""Name of the last task of preflight.yml and apply.yml; its `msg` is {reboot_required: bool, ...}."""

# A role's tasks are preflight, then install, configure and service (the table of contents in its tasks/main.yml).
# What preflight writes into its own cache is no change of the node; what is refused there was not tried.
_BEYOND_PREFLIGHT = {"preflight.yml": False, "install.yml": True, "configure.yml": True, "service.yml": True}

Event = Mapping[str, Any]


@dataclass(slots=True)
class NodeStory:
    """One node in one run, so far."""

    name: str
    started: bool = False
    beyond_preflight: bool = False
    changed: bool = False
    failed: Applied | None = None
    """Holds unless a rescue goes on: then the next task's start takes it back."""
    verdict: Applied | None = None
    """Final, except in the last judgement: it does not change once it is told."""


@dataclass(slots=True)
class RunStory:
    """Every node of one run."""

    nodes: dict[str, NodeStory]
    is_over: bool = False
    """True once the run's own stats were seen."""
    last_words: list[str] = field(default_factory=list)
    """What Ansible itself said, outside of any task."""

    @classmethod
    def of(cls, names: Iterable[str]) -> RunStory:
        return cls({name: NodeStory(name) for name in names})

    def fold(self, event: Event) -> Iterator[NodeStory]:
        """Take one event in; yields the node that it concerns."""
        kind = event.get("event", "")
        data = event.get("event_data") or {}
        if kind == "playbook_on_stats":
            self.is_over = True
            yield from self._close(data)
            return
        if kind in ("error", "verbose", "warning"):
            self._listen(event)
        host = data.get("host")
        node = self.nodes.get(host) if isinstance(host, str) else None
        if node is None or node.verdict is not None:
            return
        self._fold_task(node, kind, data)
        yield node

    def conclude(self, why: str) -> Iterator[NodeStory]:
        """The run is over, cancelled or lost: what was not judged is unknown, or failed where a task had failed."""
        for node in self.nodes.values():
            if node.verdict is None:
                node.verdict = node.failed or self._unknown(node, self._in_context(why))
                yield node

    def _in_context(self, why: str) -> str:
        errors = [words for words in self.last_words if "ERROR" in words] or self.last_words[-1:]
        return f"{why}: {one_line(errors[0])}" if errors and not self.is_over else why

    def _listen(self, event: Event) -> None:
        words = str(event.get("stdout") or "").strip()
        if words:
            self.last_words = [*self.last_words[-19:], words]

    def _fold_task(self, node: NodeStory, kind: str, data: Mapping[str, Any]) -> None:
        result = data.get("res") or {}
        if kind == "runner_on_start":
            node.started, node.failed = True, None
        if kind.startswith("runner_") and kind != "runner_on_skipped":
            path = str(data.get("task_path") or "").rpartition(":")[0]
            node.beyond_preflight = _BEYOND_PREFLIGHT.get(PurePath(path).name, node.beyond_preflight)
        if kind == "runner_on_unreachable":
            node.verdict = self._unknown(node, f"unreachable: {reason_of(result)}")
        elif kind == "runner_on_failed" and not data.get("ignore_errors"):
            node.failed = _judge_failure(node, str(data.get("task") or ""), result)
        elif kind == "runner_on_ok":
            node.changed |= node.beyond_preflight and bool(result.get("changed"))
            if data.get("task") == MARKER:
                node.verdict = self._judge_marker(node, result.get("msg"))

    def _judge_marker(self, node: NodeStory, told: Any) -> Applied:
        if not isinstance(told, Mapping) or not isinstance(told.get("reboot_required"), bool):
            return self._unknown(node, f"the task {MARKER!r} did not say whether a reboot is needed")
        return Applied("ok", changed=node.changed, reboot_required=told["reboot_required"])

    def _close(self, stats: Mapping[str, Any]) -> Iterator[NodeStory]:
        for node in self.nodes.values():
            if node.verdict is not None:
                continue
            if (stats.get("dark") or {}).get(node.name):
                node.verdict = self._unknown(node, "unreachable")
            elif (stats.get("failures") or {}).get(node.name):
                node.verdict = node.failed or Applied("failed", "a task failed", "a task failed", node.changed)
            elif (stats.get("processed") or {}).get(node.name):
                node.verdict = self._unknown(node, f"the run ended without the task {MARKER!r}")
            else:
                node.verdict = self._unknown(node, "not started: Ansible's run did not include this node")
            yield node

    def _unknown(self, node: NodeStory, reason: str) -> Applied:
        return Applied("unknown", reason, changed=node.changed)


def _judge_failure(node: NodeStory, task: str, result: Mapping[str, Any]) -> Applied:
    refused = lease_refusal(result)
    if refused:
        return Applied("unknown", f"lease: {refused}", changed=node.changed)
    text = reason_of(result)
    if "module_stdout" in result:
        # The module gave no answer (plugins/action/__init__.py, _parse_returned_data): what it did is not known.
        return Applied("unknown", f"{task}: no answer from its module: {text}", changed=node.changed)
    reason = text if _speaks_for_itself(result) else f"{task}: {text}"
    signature = signature_of(reason, node.name)
    if is_lock_held(text) or not (node.beyond_preflight or node.changed):
        return Applied("blocked", reason, signature, node.changed)
    return Applied("failed", reason, signature, node.changed or bool(result.get("changed")))


def _speaks_for_itself(result: Mapping[str, Any]) -> bool:
    """assert and fail carry a sentence that the role wrote for people; a command's output needs its task beside it."""
    return "rc" not in result and "module_stderr" not in result and bool(result.get("msg"))
