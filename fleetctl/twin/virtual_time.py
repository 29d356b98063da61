"""An asyncio event loop whose clock jumps to the next thing to do: hours pass in milliseconds, in a fixed order."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class _NoWait(selectors.SelectSelector):
    """Instead of waiting for a time-out, moves the loop's clock to its end."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("the twin waits for something that can never come")
        self.loop.elapsed_s += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Single-threaded; nothing in it may wait for the real world."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0
        selector = _NoWait()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.elapsed_s

    def call_soon_threadsafe(  # type: ignore[override]  # the type variables of the stub add nothing here
        self, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)


class VirtualClock:
    """Implements ports.Clock on a virtual loop."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self._loop.elapsed_s)

    def elapsed_s(self, at: datetime) -> float:
        """Seconds of the loop's clock at which `at` comes."""
        return (at - EPOCH).total_seconds()
