"""The floors of ARCHITECTURE.md, read from the imports: who may stand on whom.

Every rule is a function from a module (its name and its syntax tree) or from the tree of files to
sentences that say what is wrong; each rule is tested once against this repository and once against
an example that breaks it. An import counts wherever it stands: at the top, in a function, under
TYPE_CHECKING.
"""

import ast
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parent.parent

# The one name in site-packages: a package whose folders are links to the floors.
PACKAGE: Final = "odradek"


def ours(*names: str) -> frozenset[str]:
    return frozenset(f"{PACKAGE}.{name}" for name in names)


# What each floor may import of ours. Longer names win: a package or a single module.
FLOORS: Final[Mapping[str, frozenset[str]]] = {
    "protocol": ours("protocol"),
    "storage": ours("storage", "protocol"),
    "cluster": ours("cluster", "protocol"),
    "coordinator": ours("coordinator", "protocol", "cluster.metadata"),
    "node": ours("node", "coordinator", "cluster", "storage", "protocol", "__version__"),
    "testing": ours("node.embedded", "node.secured_broker"),
    "__main__": ours("node.cli.main"),
    "pipeline": ours("pipeline"),
}

# The order inside a package: a folder imports only from its own and from those named before it. The
# package's own modules stand below its folders, but for those that are named.
FOLDER_ORDER: Final[Mapping[str, tuple[str, ...]]] = {
    f"{PACKAGE}.coordinator.group": (
        "classic",
        "modern",
        "consumer",
        "share",
        "streams",
        "offsets",
        "group_directory",
        "rewind",
        "offset_commands",
        "administration",
        "records",
        "shard",
    ),
    f"{PACKAGE}.node.router": (
        "shards",
        "transactions",
        "share",
        "telemetry",
        "context",
        "change_log",
        "handlers",
        "produce_routes",
        "single_fetches",
        "fetch_routes",
        "large_fetches",
        "sessionless_fetches",
        "idle_fetches",
        "idle_connections",
        "repeated_requests",
        "dispatch",
        "connection_handover",
        "graceful_stop",
        "router_metrics",
        "process",
    ),
}

# The homes of each package that is not ours; anything else is in no product module.
HOMES: Final[Mapping[str, frozenset[str]]] = {
    "crc32c": ours("protocol.checksum", "pipeline.wire"),
    "cramjam": ours("protocol.compression", "pipeline.wire"),
    "jwt": ours("cluster.security.access_token", "node.secured_broker"),
    "lmdb": ours("storage"),
    "mypy_extensions": ours(
        "protocol.message_converter", "protocol.record_walker", "pipeline.wire.record_decoder"
    ),
    "msgspec": ours("storage", "cluster", "coordinator", "node"),
    "re2": ours("node.router.patterns"),
    "google": ours("node.router.telemetry.otlp", "pipeline.values"),
    "opentelemetry": ours("node.router.telemetry.otlp"),
    "zstandard": ours("protocol.piecewise_compression"),
    "cryptography": ours(
        "node.certificate_authority", "node.secured_broker", "node.wire.key_stores"
    ),
    "structlog": ours("node.structured_log"),
    "zmq": ours("node"),
    "uvloop": ours("node"),
    "click": ours("node", "pipeline"),
    "rich": ours("node.cli"),
    "confluent_kafka": ours("node.cli", "pipeline"),
    "pytest": ours("testing"),
    "pyspark": ours("pipeline"),
    "pyarrow": ours("pipeline"),
    "deltalake": ours("pipeline.tables"),
    "pyiceberg": ours("pipeline.tables"),
    "fastavro": ours("pipeline.values"),
    "yaml": ours("pipeline.jobs"),
}

# What of the standard library a floor must do without: pure floors have no clock, no chance and no
# loop, storage has no loop.
FORBIDDEN: Final[Mapping[str, frozenset[str]]] = {
    "protocol": frozenset({"asyncio", "random", "selectors", "socket", "threading", "time"}),
    "storage": frozenset({"asyncio", "selectors", "socket"}),
    "cluster": frozenset({"asyncio", "random", "selectors", "socket", "threading", "time"}),
    "coordinator": frozenset({"asyncio", "random", "selectors", "socket", "threading", "time"}),
}

LINES_MAX: Final = 600
BANNED_NAMES: Final = frozenset({"common", "utils", "util", "core", "helpers"})
UNTRACKED: Final = frozenset({"build", "dist", "data", "node_modules", "__pycache__"})
# Rooms of the test folder that mirror no module.
FREE_TEST_ROOMS: Final = frozenset(
    {"e2e", "conformance", "simulation", "support", "raft_comparison", "helm"}
)
# `python -O` in a script, in a Dockerfile's list, or by the environment.
OPTIMISED: Final = re.compile(
    r"""python[\w.]*["',\s]+(?:-[a-zA-Z]+["',\s]+)*-[a-zA-Z]*O\b|PYTHONOPTIMIZE"""
)
OPTIMISED_ARGUMENT: Final = re.compile(r"-[bBdEhiIqsSuvVx]*OO?$")
COMPUTED: Final = "<computed>"


class Module(NamedTuple):
    """A product module: its dotted name, its text and what Python makes of it."""

    name: str
    source: str
    tree: ast.Module
    is_package: bool = False


def module_from(name: str, source: str) -> Module:
    return Module(name, source, ast.parse(source))


@cache
def product_modules() -> tuple[Module, ...]:
    files = [path for floor in FLOORS for path in sorted((ROOT / floor).rglob("*.py"))]
    modules = [read_module(path, path.relative_to(ROOT).with_suffix("").parts) for path in files]
    top = sorted((ROOT / PACKAGE).glob("*.py"))
    return (*modules, *(read_module(path, (path.stem,)) for path in top))


def read_module(path: Path, parts: tuple[str, ...]) -> Module:
    is_package = path.name == "__init__.py"
    name = ".".join([PACKAGE, *(parts[:-1] if is_package else parts)])
    source = path.read_text()
    return Module(name, source, ast.parse(source, str(path)), is_package)


def floor_of(name: str) -> str:
    """The floor of a module; empty for the package itself."""
    return name.partition(".")[2].partition(".")[0]


def imports_of(module: Module) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything the module imports, relative names made absolute.

    `from a import b` gives `a.b`: whether b is a module or something in one is not known here.
    """
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = module.name.split(".")
                above = above[: len(above) - node.level + module.is_package]
                base = ".".join([*above, *([base] if base else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            # importlib.import_module("x") and __import__("x") are arrows too.
            called = node.func.attr if isinstance(node.func, ast.Attribute) else None
            called = node.func.id if isinstance(node.func, ast.Name) else called
            name = node.args[0]
            if called in ("import_module", "__import__"):
                is_text = isinstance(name, ast.Constant) and isinstance(name.value, str)
                yield node.lineno, str(name.value) if is_text else COMPUTED  # type: ignore[attr-defined]  # is_text says so


def lies_in(name: str, homes: Iterable[str]) -> bool:
    return any(name == home or name.startswith(f"{home}.") for home in homes)


def wrong_arrows(module: Module) -> list[str]:
    """Imports of ours that the floor of this module must not make, and those of a floor by the
    name of its folder: only `odradek` is installed.

    Only the top floor, from which all is in reach, and the pipeline, which reaches nothing of the
    broker's, may compute what they import.
    """
    floor = floor_of(module.name)
    return [
        f"{module.name}:{line} must not import {name}"
        for line, name in imports_of(module)
        if (name.partition(".")[0] == PACKAGE and not lies_in(name, FLOORS.get(floor, ())))
        or name.partition(".")[0] in FLOORS
        or (name == COMPUTED and floor not in ("node", "pipeline"))
    ]


def strangers(module: Module) -> list[str]:
    """Third-party imports outside of their home, and those without a home."""
    found = []
    for line, name in imports_of(module):
        package = name.partition(".")[0]
        if (
            package in sys.stdlib_module_names
            or package in (PACKAGE, COMPUTED)
            or package in FLOORS
        ):
            continue
        if not lies_in(module.name, HOMES.get(package, ())):
            found.append(f"{module.name}:{line} is no home of {package}")
    return found


def impurities(module: Module) -> list[str]:
    """Clocks, randomness, sockets and loops on pure floors."""
    banned = FORBIDDEN.get(floor_of(module.name), frozenset())
    return [
        f"{module.name}:{line} must do without {name.partition('.')[0]}"
        for line, name in imports_of(module)
        if name.partition(".")[0] in banned
    ]


def giants(module: Module) -> list[str]:
    count = module.source.count("\n")
    return [f"{module.name} has {count} lines: find the seam"] if count > LINES_MAX else []


def optimisations(module: Module) -> list[str]:
    """`-O` as an argument: assertions stay on."""
    return [
        f"{module.name}:{node.lineno} runs Python with {node.value!r}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and (OPTIMISED_ARGUMENT.match(node.value) or OPTIMISED.search(node.value))
    ]


def is_declaration(module: Module) -> bool:
    """Whether there is nothing to run: no function, no method, no loop, only names and shapes."""
    runs = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.For, ast.While)
    return not any(isinstance(node, runs) for node in ast.walk(module.tree))


def test_file_of(name: str) -> str:
    """The mirror of a module, relative to the root."""
    *rooms, last = name.removeprefix(f"{PACKAGE}.").split(".")
    return "/".join(["tests", *rooms, f"test_{last}.py"])


test_file_of.__test__ = False  # type: ignore[attr-defined]  # a name that pytest would collect


def without_mirror(modules: Iterable[Module], files: frozenset[str]) -> list[str]:
    """Modules with code and no test file of their name."""
    return [
        f"{module.name} has no {test_file_of(module.name)}"
        for module in modules
        if not module.is_package
        and not module.name.endswith("__main__")
        and not is_declaration(module)
        and test_file_of(module.name) not in files
    ]


def has_module(rooms: list[str], name: str, files: frozenset[str]) -> bool:
    """Whether a test file mirrors a module: `test_x.py` that of x, and so does `test_x_subject.py`
    beside it, for subjects of their own."""
    words = name.removeprefix("test_").removesuffix(".py").split("_")
    if "/".join([*rooms, "_".join(words) + ".py"]) in files:
        return True
    stems = ("_".join(words[:count]) for count in range(1, len(words)))
    return any(
        "/".join([*rooms, stem + ".py"]) in files
        and "/".join(["tests", *rooms, f"test_{stem}.py"]) in files
        for stem in stems
    )


def orphans(files: frozenset[str]) -> list[str]:
    """Test files whose module does not exist; those at the top mirror no module."""
    found = []
    for file in sorted(files):
        top, *rooms = file.split("/")[:-1] or [""]
        name = file.rpartition("/")[2]
        if top != "tests" or not rooms or rooms[0] in FREE_TEST_ROOMS:
            continue
        if name.startswith("test_") and not has_module(rooms, name, files):
            found.append(f"{file} has no {'/'.join([*rooms, name.removeprefix('test_')])}")
    return found


def place_in_order(package: str, name: str) -> int:
    """Where a module stands in its package's order; 0 for modules below all folders."""
    part = name.removeprefix(f"{package}.").partition(".")[0]
    order = FOLDER_ORDER[package]
    return order.index(part) + 1 if part in order else 0


def arrows_back_up(module: Module) -> list[str]:
    """Imports from a folder above the module's own."""
    faults = []
    for package in FOLDER_ORDER:
        if not module.name.startswith(f"{package}."):
            continue
        own = place_in_order(package, module.name)
        faults += [
            f"{module.name}:{line} imports {imported}, which stands above it"
            for line, imported in imports_of(module)
            if imported.startswith(f"{package}.") and place_in_order(package, imported) > own
        ]
    return faults


def banned_names(files: frozenset[str]) -> list[str]:
    """Folders and modules named for being of use instead of for what they are."""
    return [
        f"{file}: say what it is"
        for file in sorted(files)
        if BANNED_NAMES & set(file.removesuffix(".py").split("/"))
    ]


def circles(modules: Iterable[Module]) -> list[str]:
    """Modules that import each other, directly or through others."""
    known = {module.name: module for module in modules}
    arrows: dict[str, set[str]] = {}
    for name, module in known.items():
        targets = set()
        for _, imported in imports_of(module):
            target = imported if imported in known else imported.rpartition(".")[0]
            if target in known and not known[target].is_package:
                targets.add(target)
        arrows[name] = targets - {name}
    # Take away what imports nothing that is left, until nothing changes: circles remain, and what
    # stands on them; then the same from above.
    while True:
        pointed_at = {target for targets in arrows.values() for target in targets}
        kept = {name for name in arrows if arrows[name] and name in pointed_at}
        if len(kept) == len(arrows):
            return [f"{name} stands in a circle with {sorted(arrows[name])}" for name in arrows]
        arrows = {name: arrows[name] & kept for name in kept}


_LOGGER: Final = re.compile(r"^log = (?:logging\.getLogger|get_logger)\((.*)\)", re.MULTILINE)
LOGGERS_MODULE: Final = f"{PACKAGE}.node.log_levels"


def unlisted_loggers(modules: Iterable[Module]) -> list[str]:
    """Modules whose logger, named as they are, has no place in the list of those with a level."""
    modules = list(modules)
    listed = next(module.source for module in modules if module.name == LOGGERS_MODULE)
    return [
        f'{module.name} logs: add "{module.name}" to _MODULES of node/log_levels.py'
        for module in modules
        for name in _LOGGER.findall(module.source)
        if f'"{module.name}"' not in listed or name not in ("__name__", f'"{module.name}"')
    ]


def reused_class_names(modules: Iterable[Module]) -> list[str]:
    """Public class names that several modules define."""
    homes: dict[str, list[str]] = {}
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module.name)
    return [f"{name} is in {sorted(found)}" for name, found in homes.items() if len(found) > 1]


@cache
def modules_beside() -> tuple[Module, ...]:
    """The modules of benchmarks and shared test code, which are neither product nor tests."""
    files = [
        file
        for file in sorted(repository_files())
        if file.startswith(("bench/", "tests/")) and file.endswith(".py") and "/test_" not in file
    ]
    return tuple(
        module_from(file.removesuffix(".py").replace("/", "."), (ROOT / file).read_text())
        for file in files
    )


# A path of ours in prose: `node/wire/connection.py`, and `append.py` in a section of its folder.
NAMED_PATH: Final = re.compile(r"`([\w./-]+\.(?:py|md|toml))`")


def missing_paths(text: str, files: frozenset[str]) -> list[str]:
    """Files that a document names and that are not there; a short name may stand for any folder."""
    names = {
        "/".join(file.split("/")[start:]) for file in files for start in range(file.count("/") + 1)
    }
    return [name for name in NAMED_PATH.findall(text) if name not in names]


@cache
def repository_files() -> frozenset[str]:
    """Every file of the tree that is ours, relative to the root: no hidden folders, no builds."""
    found = []
    for folder, below, files in os.walk(ROOT):
        below[:] = [
            name
            for name in below
            if name not in UNTRACKED and (not name.startswith(".") or name == ".ci")
        ]
        place = Path(folder).relative_to(ROOT)
        found += [(place / file).as_posix() for file in files]
    return frozenset(found)


def is_readable(file: str) -> bool:
    """Whether a file could start Python."""
    return file.endswith((".sh", ".yaml", ".yml", ".toml", ".cfg", ".tpl", ".service")) or (
        file.rpartition("/")[2] in ("Makefile", "Dockerfile", "run")
    )


def assert_none(faults: Iterable[str]) -> None:
    if text := "\n".join(faults):
        pytest.fail(text, pytrace=False)


@pytest.mark.parametrize(
    "rule", [wrong_arrows, strangers, impurities, giants, optimisations, arrows_back_up]
)
def test_every_module_keeps_the_rule(rule: Callable[[Module], list[str]]) -> None:
    assert_none(fault for module in product_modules() for fault in rule(module))


def test_every_module_has_its_test_file() -> None:
    assert_none(without_mirror(product_modules(), repository_files()))


def test_every_test_file_has_its_module() -> None:
    assert_none(orphans(repository_files()))


def test_nothing_is_named_for_being_of_use() -> None:
    assert_none(banned_names(repository_files()))


def test_no_modules_import_each_other() -> None:
    assert_none(circles(product_modules()))


def test_every_logger_has_a_level_that_can_be_changed() -> None:
    assert_none(unlisted_loggers(product_modules()))


def test_every_public_class_name_stands_once() -> None:
    assert_none(reused_class_names([*product_modules(), *modules_beside()]))


@pytest.mark.parametrize("document", ["ARCHITECTURE.md", "docs/glossary.md", "README.md"])
def test_every_file_that_a_document_names_is_there(document: str) -> None:
    assert_none(missing_paths((ROOT / document).read_text(), repository_files()))


def test_nothing_starts_python_without_assertions() -> None:
    files = [file for file in repository_files() if is_readable(file)]
    assert_none(file for file in files if OPTIMISED.search((ROOT / file).read_text()))


def test_every_package_stands_on_a_known_floor() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", PACKAGE}
    assert packages - set(FLOORS) == set()
    assert packages >= {"protocol", "storage", "cluster", "coordinator", "node"}


def test_every_floor_is_linked_into_the_package() -> None:
    links = {
        path.name: path.readlink().as_posix()
        for path in (ROOT / PACKAGE).iterdir()
        if path.is_symlink()
    }
    floors = {path.parent.name for path in ROOT.glob("*/__init__.py")} & set(FLOORS)
    assert links == {name: f"../{name}" for name in floors}


@pytest.mark.parametrize(
    ("importer", "line", "is_allowed"),
    [
        ("odradek.protocol.records", "import odradek.storage.store", False),
        ("odradek.protocol.records", "from odradek.protocol import errors", True),
        ("odradek.storage.store", "from odradek.protocol.records import read_header", True),
        (
            "odradek.storage.store",
            "from odradek.cluster.metadata.image import MetadataImage",
            False,
        ),
        (
            "odradek.cluster.controller.topics",
            "from odradek.protocol.errors import ErrorCode",
            True,
        ),
        ("odradek.cluster.controller.topics", "def f():\n    import odradek.storage.layout", False),
        (
            "odradek.coordinator.runtime",
            "from odradek.cluster.metadata.image import MetadataImage",
            True,
        ),
        ("odradek.coordinator.runtime", "from odradek.cluster.metadata import image", True),
        (
            "odradek.coordinator.runtime",
            "from odradek.cluster.controller.commands import CreateTopics",
            False,
        ),
        ("odradek.coordinator.runtime", "from odradek.cluster import controller", False),
        (
            "odradek.coordinator.runtime",
            "if TYPE_CHECKING:\n    from odradek.node.router import context",
            False,
        ),
        ("odradek.coordinator.runtime", "importlib.import_module('odradek.node.router')", False),
        ("odradek.coordinator.runtime", "importlib.import_module(name)", False),
        ("odradek.node.cli.main", "importlib.import_module(name)", True),
        (
            "odradek.node.router.process",
            "import odradek.coordinator.runtime, odradek.storage.reader",
            True,
        ),
        ("odradek.node.router.process", "from odradek.pipeline import sources", False),
        ("odradek.node.router.process", "from ..worker import process", True),
        ("odradek.protocol.records", "from ..storage import store", False),
        ("odradek.pipeline.sources", "from odradek.protocol import records", False),
    ],
)
def test_arrows_are_told_apart(importer: str, line: str, is_allowed: bool) -> None:
    assert (wrong_arrows(module_from(importer, line)) == []) == is_allowed


@pytest.mark.parametrize(
    ("importer", "line", "is_allowed"),
    [
        ("odradek.protocol.compression", "import cramjam", True),
        ("odradek.storage.append", "from crc32c import crc32c", False),
        ("odradek.storage.append", "from odradek.protocol.checksum import crc32c", True),
        ("odradek.storage.segment", "import lmdb", True),
        ("odradek.node.worker.process", "import lmdb", False),
        ("odradek.cluster.metadata.records", "import msgspec", True),
        ("odradek.protocol.codec", "import msgspec", False),
        ("odradek.node.bus.endpoint", "import zmq", True),
        ("odradek.storage.store", "import zmq", False),
        ("odradek.testing", "import pytest", True),
        ("odradek.node.supervisor", "import pytest", False),
        ("odradek.node.cli.topics", "from rich.table import Table", True),
        ("odradek.node.supervisor", "import rich", False),
        ("odradek.node.supervisor", "import click", True),
        ("odradek.node.router.process", "from confluent_kafka import Producer", False),
        ("odradek.node.router.process", "import numpy", False),
        ("odradek.node.router.process", "import os, struct, asyncio", True),
    ],
)
def test_strangers_are_told_apart(importer: str, line: str, is_allowed: bool) -> None:
    assert (strangers(module_from(importer, line)) == []) == is_allowed


@pytest.mark.parametrize(
    ("importer", "line", "is_allowed"),
    [
        ("odradek.cluster.raft.node", "import random", False),
        ("odradek.coordinator.timers", "from time import monotonic", False),
        ("odradek.storage.store", "import asyncio", False),
        ("odradek.storage.store", "import time", True),
        ("odradek.protocol.codec", "import asyncio.streams", False),
        ("odradek.node.supervisor", "import asyncio, time, random", True),
    ],
)
def test_impurities_are_told_apart(importer: str, line: str, is_allowed: bool) -> None:
    assert (impurities(module_from(importer, line)) == []) == is_allowed


@pytest.mark.parametrize(
    ("importer", "imported", "is_allowed"),
    [
        ("shard", "records", True),
        ("offsets.committed_offsets", "settings", True),
        ("offsets.committed_offsets", "offsets.pending_offsets", True),
        ("offsets.committed_offsets", "rewind.rewind_tables", False),
        ("settings", "classic.group", False),
        ("records", "shard", False),
    ],
)
def test_arrows_back_up_are_found(importer: str, imported: str, is_allowed: bool) -> None:
    package = f"{PACKAGE}.coordinator.group"
    module = module_from(f"{package}.{importer}", f"from {package}.{imported} import X")
    assert (not arrows_back_up(module)) is is_allowed


def test_a_giant_is_found_at_601_lines() -> None:
    assert giants(module_from("odradek.node.x", "pass\n" * 600)) == []
    assert len(giants(module_from("odradek.node.x", "pass\n" * 601))) == 1


@pytest.mark.parametrize(
    ("text", "is_optimised"),
    [
        ("exec python -O -m node", True),
        ("python3.11 -u -OO -m node", True),
        ('ENTRYPOINT ["python", "-u", "-OO", "-m", "node"]', True),
        ("ENV PYTHONOPTIMIZE=1", True),
        ("python -m node", False),
        ("curl -O https://example.org/python", False),
        ("python tool.py -Output", False),
    ],
)
def test_optimised_python_is_found_in_scripts(text: str, is_optimised: bool) -> None:
    assert bool(OPTIMISED.search(text)) == is_optimised


def test_optimised_python_is_found_in_arguments() -> None:
    assert optimisations(module_from("odradek.node.x", "run([executable, '-OO', '-m', 'node'])"))
    assert optimisations(module_from("odradek.node.x", "run(env={'PYTHONOPTIMIZE': '1'})"))
    assert not optimisations(
        module_from("odradek.node.x", "run([executable, '-m', 'node', '-OS'])")
    )


def test_a_module_with_something_to_run_needs_its_mirror() -> None:
    runs = module_from("odradek.node.wire.framing", "def f(): ...")
    shapes = module_from("odradek.node.bus.messages", "class M:\n    x: int = 0\n")
    main = module_from("odradek.node.__main__", "def f(): ...")
    assert len(without_mirror([runs, shapes, main], frozenset())) == 1
    assert without_mirror([runs], frozenset({"tests/node/wire/test_framing.py"})) == []


def test_an_orphaned_test_file_is_found() -> None:
    files = frozenset({"protocol/records.py", "tests/protocol/test_records.py"})
    assert orphans(files) == []
    assert orphans(files | {"tests/protocol/test_gone.py"}) != []
    assert orphans(files | {"tests/e2e/test_serve.py", "tests/test_packaging.py"}) == []
    assert orphans(files | {"tests/storage/tearing.py"}) == []
    with_subject = files | {"tests/protocol/test_records_compressed.py"}
    assert orphans(with_subject) == []
    assert orphans(with_subject - {"tests/protocol/test_records.py"}) != []
    assert orphans(with_subject - {"protocol/records.py"}) != []


def test_names_that_say_nothing_are_found() -> None:
    assert banned_names(frozenset({"node/utils/x.py", "storage/common.py"})) != []
    assert banned_names(frozenset({"node/cli/main.py", "docs/commons.md"})) == []


def test_circles_are_found_and_chains_are_not() -> None:
    a = module_from("odradek.node.a", "from odradek.node import b")
    b = module_from("odradek.node.b", "import odradek.node.c")
    c = module_from("odradek.node.c", "from odradek.node.a import something")
    leaf = module_from("odradek.node.d", "import odradek.node.a")
    assert circles([a, b, leaf]) == []
    assert len(circles([a, b, c, leaf])) == 3


def test_a_logger_that_is_not_listed_is_found() -> None:
    levels = module_from(LOGGERS_MODULE, '_MODULES = ("odradek.node.a",)')
    a = module_from("odradek.node.a", "log = logging.getLogger(__name__)")
    b = module_from("odradek.node.b", "log = get_logger(__name__)")
    renamed = module_from("odradek.node.a", 'log = logging.getLogger("x")')
    assert unlisted_loggers([levels, a]) == []
    assert len(unlisted_loggers([levels, a, b])) == 1
    assert len(unlisted_loggers([levels, renamed])) == 1


def test_a_class_name_in_two_modules_is_found() -> None:
    a = module_from("odradek.node.a", "class Session: ...\nclass _Row: ...\n")
    b = module_from("odradek.node.b", "class Session: ...\nclass _Row: ...\n")
    assert reused_class_names([a]) == []
    assert len(reused_class_names([a, b])) == 1


def test_a_file_that_is_named_and_gone_is_found() -> None:
    files = frozenset({"node/wire/connection.py", "storage/append.py"})
    assert (
        missing_paths("`node/wire/connection.py`, `append.py`, `wire/connection.py`", files) == []
    )
    assert missing_paths("`wire/gone.py`", files) == ["wire/gone.py"]
