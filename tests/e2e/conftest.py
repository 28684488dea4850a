"""Fixtures that run whole nodes as processes, and a report of measured figures."""

import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from odradek.node.embedded import EmbeddedBroker

with warnings.catch_warnings():
    # kafka-python reads its schemas on import in a way that Python 3.11 warns about.
    warnings.simplefilter("ignore", DeprecationWarning)
    importlib.import_module("kafka")

FIGURES = pytest.StashKey[list[str]]()

Report = Callable[[str], None]
StartNode = Callable[..., EmbeddedBroker]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder: they all need real processes."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the measured figures. They depend on the machine and are not asserted."""
    figures = config.stash.get(FIGURES, [])
    if figures:
        terminalreporter.section("figures")
        for figure in figures:
            terminalreporter.line(figure)


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    """Adds a figure to the report at the end of the run."""
    figures = request.config.stash.setdefault(FIGURES, [])

    def add(figure: str) -> None:
        figures.append(f"{request.node.name}: {figure}")

    return add


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[StartNode]:
    """Starts nodes with settings of `odradek serve --set`; they are closed at the end of the
    test."""
    nodes: list[EmbeddedBroker] = []

    def start(
        settings: Mapping[str, str] | None = None, directory: Path | None = None
    ) -> EmbeddedBroker:
        node = EmbeddedBroker(
            directory or tmp_path / f"node-{len(nodes)}", settings=settings, timeout_s=60.0
        )
        nodes.append(node)
        node.start()
        return node

    yield start
    for node in nodes:
        node.kill()
