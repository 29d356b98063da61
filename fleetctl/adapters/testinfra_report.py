"""A pytest plugin for verify: every node's checks in a process of their own, each outcome told at once.

Starting pytest costs the controller close to a second, a check about 10 ms: so nodes share one start and one
collection, and then each gets a fork, where a check that hangs holds up nobody else. Told are JSON lines on the file
descriptor in FLEETCTL_REPORT_FD:
{"error"}, {"node", "checks": [...]}, {"node", "pid"}, {"node", "check", "outcome", "text", "lost"}, {"node", "ended"}
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from itertools import pairwise
from typing import Any

import pytest

AT_ONCE = 16
_TEXT_LIMIT, _NAME_LIMIT = 400, 150
"""A line must be written at once, or those of two nodes would mix: PIPE_BUF is 4096, and JSON makes 6 of one letter."""


def tell(**line: Any) -> None:
    try:
        os.write(int(os.environ["FLEETCTL_REPORT_FD"]), json.dumps(line).encode() + b"\n")
    except BrokenPipeError:
        os._exit(1)  # nobody listens any more


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        tell(error=f"{report.nodeid}: {_last_line(report.longreprtext)}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    if session.testsfailed:
        return True  # not all could be collected: nothing is run, and so nothing passes
    waiting: dict[str, list[pytest.Item]] = {}
    for item in session.items:
        waiting.setdefault(_node_of(item), []).append(item)
    for node, items in waiting.items():
        tell(node=node, checks=[_name_of(item) for item in items])
    running: dict[int, str] = {}
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            node = next(iter(waiting))
            running[_fork(node, waiting.pop(node))] = node
        pid, status = os.wait()
        if pid in running:
            tell(node=running.pop(pid), ended=os.waitstatus_to_exitcode(status))
    return True


def _fork(node: str, items: list[pytest.Item]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()  # so that the checks of one node can be ended with all that they started
        tell(node=node, pid=os.getpid())
        for item, following in pairwise([*items, None]):
            assert item is not None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        code = 0
    finally:
        os._exit(code)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[_OUTCOME] = {"outcome": "passed", "text": "", "lost": False}
    result = yield
    tell(node=_node_of(item), check=_name_of(item), **item.stash[_OUTCOME])
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    told = item.stash[_OUTCOME]
    if report.failed and told["outcome"] != "failed":
        told |= {"outcome": "failed", "text": message_of(report)[:_TEXT_LIMIT], "lost": _is_ssh_failure(call)}
    elif told["outcome"] == "passed" and (report.skipped or hasattr(report, "wasxfail")):
        text = str(getattr(report, "wasxfail", "")) or message_of(report)
        told |= {"outcome": "skipped", "text": text[:_TEXT_LIMIT]}
    return report


_OUTCOME: pytest.StashKey[dict[str, Any]] = pytest.StashKey()


def _is_ssh_failure(call: pytest.CallInfo[None]) -> bool:
    """testinfra's ssh backend raises RuntimeError(result) for 255, ssh's own exit code; nvidia-smi has it too."""
    error = call.excinfo.value if call.excinfo else None
    return isinstance(error, RuntimeError) and getattr((error.args or (None,))[0], "rc", None) == 255


def message_of(report: pytest.TestReport) -> str:
    """What a check said when it did not pass, in one line, without pytest's own words around it."""
    if report.skipped and isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message if crash is not None else report.longreprtext)
    # pytest shows the expression that was false below what the check said of it.
    text = text.partition("\nassert ")[0]
    for word in ("AssertionError: ", "Failed: "):
        text = text.removeprefix(word)
    return " ".join(text.split())


def _last_line(text: str) -> str:
    lines = text.strip().splitlines() or ["without a word"]
    return lines[-1].strip()[:_TEXT_LIMIT]


def _node_of(item: pytest.Item) -> str:
    callspec = getattr(item, "callspec", None)
    host = callspec.params.get("_testinfra_host") if callspec else None
    return host.backend.get_hostname() if host is not None else ""


def _name_of(item: pytest.Item) -> str:
    """The check's name without the node: test_x[ssh://n1-8] of test_driver.py is driver.test_x[8]."""
    name = item.name.replace(f"ssh://{_node_of(item)}", "").replace("[-", "[").replace("-]", "]").replace("[]", "")
    return f"{item.path.stem.removeprefix('test_')}.{name}".replace(":", "_")[:_NAME_LIMIT]
