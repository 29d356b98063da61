"""What was read of the world: a value, not applicable, or unknown with a reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class Reading(Generic[T_co]):
    """One observed value. "Could not read" is never turned into "absent" or zero."""

    kind: Literal["value", "not_applicable", "unknown"]
    value: T_co | None = None
    reason: str = ""

    @property
    def is_known(self) -> bool:
        return self.kind == "value"

    def get(self) -> T_co:
        """The value; only for a reading that has one."""
        if self.kind != "value":
            raise LookupError(f"no value was read: {self.kind} {self.reason}".rstrip())
        return self.value  # type: ignore[return-value]  # kind says that there is one

    def map(self, convert: Callable[[T_co], U]) -> Reading[U]:
        """The same reading with its value converted; the other kinds pass through."""
        return value_of(convert(self.get())) if self.kind == "value" else Reading(self.kind, None, self.reason)


def value_of(value: U) -> Reading[U]:
    return Reading("value", value)


def not_applicable(reason: str = "") -> Reading[U]:
    return Reading("not_applicable", None, reason)


def unknown(reason: str) -> Reading[U]:
    return Reading("unknown", None, reason)
