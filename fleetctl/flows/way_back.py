"""Asks nodes whether what is installed now could be had again, so that a plan knows before any drain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from fleetctl.decide.way_back import Question
from fleetctl.model.fleet import Node
from fleetctl.model.reading import Reading, unknown
from fleetctl.ports import Nodes

Lost = Reading[tuple[str, ...]]

DEADLINE_S = 300.0
"""After this long what is not answered is unknown."""
AT_ONCE = 32
"""Nodes asked side by side: each reads the index of every repository it has."""
TRIES = 2
"""So many nodes of a question are asked before its answer is unknown."""
_CANCEL_S = 5.0


async def ask(
    port: Nodes,
    fleet: Mapping[str, Node],
    questions: Sequence[Question],
    *,
    deadline_s: float = DEADLINE_S,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> dict[str, Lost]:
    """By node of every question, what is lost. One node answers for all of its question."""
    slots = asyncio.Semaphore(AT_ONCE)
    answers: list[Lost] = [unknown(f"no answer within {deadline_s:g} s")] * len(questions)
    answered = 0

    async def put(number: int, question: Question) -> None:
        nonlocal answered
        async with slots:
            answers[number] = await _ask_one(port, fleet, question)
        answered += 1
        progress(answered, len(questions))

    progress(0, len(questions))
    tasks = [asyncio.ensure_future(put(number, question)) for number, question in enumerate(questions)]
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=deadline_s)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=_CANCEL_S)
            progress(len(questions), len(questions))
    return {node: answer for question, answer in zip(questions, answers, strict=True) for node in question.nodes}


async def _ask_one(port: Nodes, fleet: Mapping[str, Node], question: Question) -> Lost:
    answer: Lost = unknown("no node was asked")
    for name in question.nodes[:TRIES]:
        try:
            answer = await port.lost_packages(fleet[name], question.packages)
        except Exception as error:  # noqa: BLE001  a fault of ours in one answer must not hide the others
            answer = unknown(f"unexpected {type(error).__name__}: {error}")
        if answer.is_known:
            # Some of what is lost may be kept on the node.
            return unknown(question.doubt) if answer.value and question.doubt else answer
        answer = unknown(f"{name}: {answer.reason}")
    return answer
