"""What pydantic finds wrong, in words for the person who wrote the value."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

_TYPES = {
    "string_type": "must be text",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must hold keys and values",
    "model_type": "must hold keys and values",
    "model_attributes_type": "must hold keys and values",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be {ge} or more",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
}


def suggest(word: str, known: Iterable[str]) -> str:
    """' (did you mean X?)' for the known word nearest to `word`, or an empty text."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" (did you mean {near[0]}?)" if near else ""


def shown(value: Any) -> str:
    """A value as it is written in YAML, cut to a readable length."""
    text = (
        {True: "true", False: "false", None: "null"}[value] if value is None or value is True or value is False else ""
    )
    text = text or (f'"{value}"' if isinstance(value, str) else str(value))
    return text if len(text) <= 60 else text[:57] + "..."


def explain(problem: Mapping[str, Any]) -> str:
    """One pydantic error in words, without the place it was found at."""
    kind, value, context = problem["type"], problem["input"], problem.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind in _TYPES:
        return f"{shown(value)} {_TYPES[kind].format(**context)}"
    if kind == "literal_error":
        return f"{shown(value)} is not one of {context['expected']}"
    if kind == "missing":
        return "is missing"
    message = str(problem["msg"])
    return f"{shown(value)}: {message[0].lower()}{message[1:]}"
