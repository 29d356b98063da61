"""Every error that fleetctl raises, one tree.

FleetctlError                  exit 1: unexpected; the message names the thing and the next step
├── BadInput                   exit 2: the person or a file asked for something that can't be; nothing was touched
│   ├── InventoryError         hosts, variables, groups
│   ├── PolicyError            fleet.yml, budgets, windows
│   ├── SelectionError         node names, --limit, --exclude
│   └── SchedulerError         scheduler unreachable, or our identity can't see all jobs
├── Refused                    exit 2: somebody else owns it (another controller, another rollout)
└── StoreError                 exit 1: the journal can't be read or written
    ├── JournalFull            the disk is full: stop before the next node
    └── JournalDamaged         the hash chain is broken or the schema is newer than this program

A failing node is never an exception: it is data (an Outcome). Only what concerns the whole fleet is raised.
"""


class FleetctlError(Exception):
    """Root of all errors raised on purpose."""

    exit_code = 1


class BadInput(FleetctlError):
    """Input that can't be acted on. Nothing was touched."""

    exit_code = 2


class InventoryError(BadInput):
    """The inventory can't be read, or a declared value is not valid."""


class PolicyError(BadInput):
    """fleet.yml, or a flag that overrides it, is not valid."""


class SelectionError(BadInput):
    """Named nodes do not exist, or nothing is left to act on."""


class SchedulerError(BadInput):
    """The scheduler can't be reached or does not show us every job."""


class Refused(FleetctlError):
    """Another controller or rollout owns what was asked for; the message names it."""

    exit_code = 2


class StoreError(FleetctlError):
    """The journal can't be read or written."""


class JournalFull(StoreError):
    """No room to write an intent: nothing may be started."""


class JournalDamaged(StoreError):
    """The journal's hash chain or schema is not what this program can trust."""
