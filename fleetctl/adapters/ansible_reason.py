"""Why a task failed, in one line for people, and as a signature that is equal for failures of the same kind."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

REASON_LIMIT = 400
SIGNATURE_LIMIT = 200

# Ansible's own words for "see elsewhere".
_EMPTY_WORDS = re.compile(
    r"^(non-zero return code|MODULE FAILURE.*|One or more items failed|All items completed|"
    r"Module result deserialization failed.*|No start of json char found.*|Task failed\.?)$",
    re.DOTALL,
)
# apt-pkg/deb/debsystem.cc and dpkg's lib/dpkg/db-fsys... print these; `dnf` waits, and yum says "holding the yum lock".
_LOCK_HELD = re.compile(
    r"Could not get lock /|Unable to acquire the dpkg frontend lock|Unable to lock (the administration )?directory|"
    r"dpkg frontend lock was locked by another process|is another process using it\?|"
    r"Failed to lock apt for exclusive operation|currently holding the yum lock|lockfile is held by another process",
    re.IGNORECASE,
)
# The line that names the cause, best first; the last line of apt and dpkg only says that something went wrong.
_TELLING = (
    _LOCK_HELD,
    re.compile(r"^Error! "),  # dkms
    re.compile(r"^dpkg: (unrecoverable fatal )?error"),
    re.compile(r"^E: (?!Sub-process )"),
    re.compile(r"^Error: "),  # dnf
    re.compile(r"^E: "),
)
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def reason_of(result: Mapping[str, Any]) -> str:
    """One line from a task's result: what the role says, else the telling line of the output."""
    item = next((part for part in _failed_items(result)), None)
    if item is not None:
        return reason_of(item)
    message = str(result.get("msg") or "").strip().removeprefix("Task failed: ").removeprefix("Module failed: ")
    if message and not _EMPTY_WORDS.match(message) and "rc" not in result:
        return one_line(message)
    said = "\n".join(str(result.get(key) or "") for key in ("module_stderr", "stderr", "module_stdout", "stdout"))
    lines = [line.strip() for line in _ESCAPES.sub("", said).splitlines() if line.strip()]
    for telling in _TELLING:
        for line in lines:
            if telling.search(line):
                return one_line(line)
    for key in ("stderr", "module_stderr", "stdout", "module_stdout"):
        if words := str(result.get(key) or "").strip():
            return one_line(_ESCAPES.sub("", words).splitlines()[-1])
    exception = str(result.get("exception") or "").strip()
    if exception:
        return one_line(exception.splitlines()[-1])
    code = f" (exit code {result['rc']})" if "rc" in result else ""
    return one_line(f"{message or 'the task failed and said nothing'}{code}")


def _failed_items(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    items, modules = result.get("results"), result.get("failed_modules")
    parts = [*(items if isinstance(items, list) else ())]
    # Gathering facts runs modules of its own, and says only which of them failed (plugins/action/gather_facts.py).
    parts += modules.values() if isinstance(modules, Mapping) else ()
    return [part for part in parts if isinstance(part, Mapping) and part.get("failed")]


def one_line(text: str) -> str:
    plain = " ".join(_ESCAPES.sub("", text).split())
    return plain if len(plain) <= REASON_LIMIT else plain[: REASON_LIMIT - 1] + "…"


def is_lock_held(text: str) -> bool:
    """True if another process has the package manager: nothing was tried, and the same may work later."""
    return bool(_LOCK_HELD.search(text))


def lease_refusal(result: Mapping[str, Any]) -> str:
    """What lease.py said when it refused to run this task; an empty text if it did not."""
    for item in (result, *_failed_items(result)):
        if item.get("rc") != 97:  # NOT_RUN of lease.py
            continue
        for key in ("module_stderr", "stderr", "module_stdout", "stdout", "msg"):
            for line in str(item.get(key) or "").splitlines():
                try:
                    told = json.loads(line)
                except ValueError:
                    continue
                if isinstance(told, dict) and ("refused" in told or "error" in told):
                    return str(told.get("refused") or told["error"])
    return ""


_PLACES = (
    (re.compile(r"\bhttps?://\S+"), "<url>"),
    (re.compile(r"(?<![\w.])(?:/[\w.+~:@%=-]+)+/?"), "<path>"),
)
_NUMBERS = (
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE), "<hex>"),
    (re.compile(r"\b0x[0-9a-f]+\b", re.IGNORECASE), "<hex>"),
    (re.compile(r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{8,}\b", re.IGNORECASE), "<hex>"),
    (re.compile(r"\d[\w.~+:]*(?:-\d[\w.~+:]*)*"), "<n>"),
)


def signature_of(text: str, *names: str) -> str:
    """`text` without what differs between nodes and versions: host names, paths, hex, numbers, versions."""
    named = tuple((re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w-])"), "<node>") for name in names if name)
    plain = one_line(text)
    for pattern, word in (*_PLACES, *named, *_NUMBERS):
        plain = pattern.sub(word, plain)
    return plain[:SIGNATURE_LIMIT]
