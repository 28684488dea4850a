"""The broker that conformance tests speak to: an Odradek of the session, or any other.

With CONFORMANCE_BOOTSTRAP=HOST:PORT the same tests run against that broker. What they
expect is what Apache Kafka does: they are run against it before they judge us.
"""

import importlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from odradek.node.embedded import EmbeddedBroker
from tests.conformance.dialogue import DialogueCluster, unique
from tests.support.wire import WireClient

with warnings.catch_warnings():
    # kafka-python reads its schemas on import in a way that Python 3.11 advises against. Done
    # here, before the tests import it and turn the advice into an error.
    warnings.simplefilter("ignore", DeprecationWarning)
    importlib.import_module("kafka")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder is a conformance test."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.conformance)


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the broker under test."""
    given = os.environ.get("CONFORMANCE_BOOTSTRAP")
    if given:
        yield given
        return
    with EmbeddedBroker(tmp_path_factory.mktemp("odradek")) as broker:
        yield broker.bootstrap_servers


@pytest.fixture(scope="session")
def cluster(bootstrap: str) -> DialogueCluster:
    """The broker under test, with what it takes to make topics there."""
    return DialogueCluster(bootstrap)


@pytest.fixture
def wire(bootstrap: str) -> Iterator[WireClient]:
    """A fresh connection to the broker under test."""
    with WireClient(bootstrap) as client:
        yield client


@pytest.fixture
def topic(cluster: DialogueCluster) -> str:
    """A new topic with one partition."""
    return cluster.new_topic()


@pytest.fixture
def group() -> str:
    """The name of a group that nobody has used."""
    return unique("group")
