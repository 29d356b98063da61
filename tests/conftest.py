"""How every kind of test runs: the same examples each time in CI, new ones everywhere else; with or without skips."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest
from hypothesis import settings

# A landing must not depend on luck; whoever runs the tests at their desk, or test-full, looks at new examples.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("desk", deadline=None, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") and not os.environ.get("FLEETCTL_TEST_FULL") else "desk")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where tools/prerequisites has installed what tests need, one that can not run shows what it forgot."""
    report = yield
    if report.skipped and os.environ.get("FLEETCTL_TEST_NO_SKIPS"):
        where, line, reason = report.longrepr if isinstance(report.longrepr, tuple) else (item.nodeid, 0, "")
        report.outcome = "failed"
        report.longrepr = f"{where}:{line}: no test may be skipped here. {reason}"
    return report
