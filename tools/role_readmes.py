"""Writes the options table of each role's README.md from its meta/argument_specs.yml: python tools/role_readmes.py

With --check nothing is written; exit code 1 names the files that differ.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROLES = Path(__file__).resolve().parents[1] / "roles"
BEGIN, END = "<!-- options: written by tools/role_readmes.py -->", "<!-- end of options -->"


def options_of(role: Path) -> Mapping[str, Mapping[str, Any]]:
    spec = yaml.safe_load((role / "meta" / "argument_specs.yml").read_text(encoding="utf-8"))
    found: Mapping[str, Mapping[str, Any]] = spec["argument_specs"]["main"]["options"]
    return found


def table_of(role: Path) -> str:
    """The table, a row for each option and each option inside of it."""
    rows = ["| variable | type | default | |", "|---|---|---|---|"]
    for name, option in options_of(role).items():
        rows.append(_row(f"`{name}`", option))
        rows += [_row(f"&nbsp;&nbsp;`{inner}`", row) for inner, row in option.get("options", {}).items()]
    return "\n".join(rows)


def _row(name: str, option: Mapping[str, Any]) -> str:
    kind = " of ".join(filter(None, (option["type"], option.get("elements"))))
    if "choices" in option:
        kind = " or ".join(f"`{choice}`" for choice in option["choices"])
    default = "required" if option.get("required") else _literal(option["default"]) if "default" in option else ""
    words = option["description"]
    text = " ".join((" ".join(words) if isinstance(words, list) else words).split())
    # C(...) is how Ansible's documentation marks code.
    while "C(" in text:
        head, _, rest = text.partition("C(")
        code, _, tail = rest.partition(")")
        text = f"{head}`{code}`{tail}"
    return f"| {name} | {kind} | {default} | {text.replace('|', chr(92) + '|')} |"


def _literal(value: Any) -> str:
    return f"`{value}`" if isinstance(value, str) else f"`{json.dumps(value)}`"


def with_table(text: str, table: str, path: Path) -> str:
    """`text` with what is between the two markers replaced."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{path}: put the lines {BEGIN} and {END} where the table belongs")
    return f"{head}{BEGIN}\n{table}\n{END}{tail}"


def differing(roles: Path) -> dict[Path, str]:
    """README.md to the text it should have, for those that do not have it."""
    found = {}
    for readme in sorted(roles.glob("*/README.md")):
        text = readme.read_text(encoding="utf-8")
        wanted = with_table(text, table_of(readme.parent), readme)
        if wanted != text:
            found[readme] = wanted
    return found


def main() -> int:
    found = differing(ROLES)
    if "--check" in sys.argv[1:]:
        sys.stderr.writelines(f"{path}: run python tools/role_readmes.py\n" for path in found)
        return 1 if found else 0
    for readme, text in found.items():
        readme.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
