"""How every kind of test runs: the same examples each time in CI, new ones everywhere else."""

from __future__ import annotations

import os

from hypothesis import settings

# A landing must not depend on luck; whoever runs the tests at their desk, or test-full, looks at new examples.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("desk", deadline=None, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") and not os.environ.get("FLEETCTL_TEST_FULL") else "desk")
