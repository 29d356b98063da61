"""Who may import whom inside fleetctl, read from the source. The table is DESIGN's, section 3."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "fleetctl"

# Beside these, everyone may import itself and errors.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "model": set(),
    "parse": {"model"},
    "ports": {"model"},
    "components": {"model", "parse"},
    "decide": {"model", "components"},
    "flows": {"model", "components", "decide", "ports"},
    "report": {"model", "components", "decide", "ports"},
    "store": {"model", "parse", "components", "ports"},
    "adapters": {"model", "parse", "components", "ports"},
    "twin": {"model", "parse", "components", "ports"},
    "lab": {"adapters", "store", "model"},
    # On a node there is nothing but Python.
    "probe": set(),
}
EVERYTHING = {"cli"}
EXCEPTIONS = {
    # The type of what it finds, for type checkers only.
    "components/registry.py": {"ports"},
    # For the twin what cli is for real nodes: it builds the world and lets the flows run on it.
    "twin/controller.py": {"decide", "flows"},
}
PURE = {"model", "parse", "components", "decide"}
# Modules that bring clocks, randomness or the world with them; pathlib is there for paths as values.
IMPURE = {"time", "random", "os", "subprocess", "socket", "asyncio", "threading", "sqlite3", "secrets", "uuid"}
HEAVY = {
    "ansible_runner",
    "asyncssh",
    "fabric",
    "sqlalchemy",
    "pydantic",
    "rich",
    "jinja2",
    "yaml",
    "ansible",
    "ClusterShell",
}


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if "_content" not in path.parts)


def part_of(module: Path) -> str:
    """The package, or top-level module, that the table speaks of; empty for fleetctl itself."""
    first = module.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py").removeprefix("__init__")


def imports(tree: ast.AST, module: Path) -> Iterator[str]:
    """Dotted names that a module imports, wherever it does."""
    package = ["fleetctl", *module.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{source}.{alias.name}" for alias in node.names)


def fleetctl_imports(module: Path) -> set[str]:
    return {name.split(".")[1] for name in imports(parse(module), module) if name.startswith("fleetctl.")}


def parse(module: Path) -> ast.Module:
    return ast.parse(module.read_text(encoding="utf-8"), str(module))


@pytest.mark.parametrize("module", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_what_its_layer_may(module: Path) -> None:
    part = part_of(module)
    if part in EVERYTHING or not part:
        return
    assert part in ALLOWED, f"{part} has no row in the import table"
    beyond = fleetctl_imports(module) - ALLOWED[part] - {part, "errors"}
    assert beyond == EXCEPTIONS.get(str(module.relative_to(PACKAGE)), set())


@pytest.mark.parametrize(
    "module", [path for path in modules() if part_of(path) in PURE], ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_a_pure_module_imports_no_clock_no_chance_and_no_world(module: Path) -> None:
    used = {name.split(".")[0] for name in imports(parse(module), module)}
    assert not used & IMPURE


def test_the_table_names_nothing_that_is_not_there() -> None:
    assert set(ALLOWED) | EVERYTHING <= {part_of(module) for module in modules()}
    assert all((PACKAGE / name).is_file() for name in EXCEPTIONS)


def test_the_commands_start_without_heavy_imports() -> None:
    code = "import sys, fleetctl.cli.main; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not set(done.stdout.split()) & HEAVY
