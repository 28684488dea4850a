"""The brokers that conformance tests speak to: an Odradek of the session, or any others.

CONFORMANCE_NODES=3 is a cluster of three: topics have three replicas, of which two must be in sync,
and clients meet leaders and coordinators on other nodes than the one where they begin. With
CONFORMANCE_NODES=1,3 each test runs against one node and against three. With
CONFORMANCE_RESTARTS=1 these nodes are restarted in turn meanwhile. With
CONFORMANCE_BOOTSTRAP=HOST:PORT,... the same tests run against those brokers. What they
expect is what Apache Kafka does: they are run against it before they judge us.
"""

import importlib
import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from odradek.node.embedded import EmbeddedBroker
from tests.conformance.dialogue import DialogueCluster, unique
from tests.conformance.restarts import Restarts
from tests.conformance.routing import ARE_RESTARTED, Nodes
from tests.e2e.cluster import Cluster, running_cluster
from tests.support.wire import WireClient

GIVEN = os.environ.get("CONFORMANCE_BOOTSTRAP")
NODE_COUNTS = [int(count) for count in os.environ.get("CONFORMANCE_NODES", "1").split(",")]
RESTARTS = pytest.StashKey[Restarts]()
SETTINGS = {
    "min.insync.replicas": "2",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    # The rest as one node of the tests has it.
    "arena.bytes": "256MiB",
    "socket.request.max.bytes": "104857600",
}
"""Of each of several nodes; topics of users have three replicas by default."""

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
            if ARE_RESTARTED:
                _prepare_for_restarts(item)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Tell how many restarts the tests have met."""
    restarts = config.stash.get(RESTARTS, None)
    if restarts is not None:
        terminalreporter.line(f"{restarts.count} restarts of nodes")


def _prepare_for_restarts(item: pytest.Item) -> None:
    marker = item.get_closest_marker("no_restarts")
    if marker is not None:
        item.add_marker(pytest.mark.skip(reason=f"while nodes restart: {marker.args[0]}"))
    # kafka-python leaves sockets that could not connect to the garbage collector, which may tell
    # of it in any test.
    ignored = [
        "ignore:unclosed .*socket:ResourceWarning",
        "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning",
    ]
    item.add_marker(pytest.mark.filterwarnings(*ignored))


@pytest.fixture(
    scope="session",
    params=NODE_COUNTS if len(NODE_COUNTS) > 1 and not GIVEN else None,
    ids=lambda count: f"nodes={count}",
)
def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster | None]:
    """Several nodes of ours, if that is what is under test."""
    node_count: int = getattr(request, "param", NODE_COUNTS[0])
    if GIVEN or node_count == 1:
        yield None
        return
    folder = tmp_path_factory.mktemp("odradek-cluster")
    with running_cluster(folder, node_count, settings=SETTINGS) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def nodes(running: Cluster | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """The nodes under test."""
    with ExitStack() as stack:
        if running is not None:
            bootstrap = running.bootstrap_servers
        elif GIVEN:
            bootstrap = GIVEN
        else:
            broker = EmbeddedBroker(tmp_path_factory.mktemp("odradek"))
            bootstrap = stack.enter_context(broker).bootstrap_servers
        yield stack.enter_context(Nodes(bootstrap))


@pytest.fixture(scope="session")
def restarts(
    request: pytest.FixtureRequest, cluster: DialogueCluster, running: Cluster | None
) -> Iterator[Restarts | None]:
    """The restarts of the nodes under test, if that is what is asked for."""
    if not ARE_RESTARTED:
        yield None
        return
    assert running is not None, "CONFORMANCE_RESTARTS needs several nodes: CONFORMANCE_NODES=3"
    assert cluster.versions, "asked for while all nodes are up"
    with Restarts(running) as ongoing:
        request.config.stash[RESTARTS] = ongoing
        yield ongoing


@pytest.fixture(autouse=True)
def nodes_come_back(restarts: Restarts | None) -> Iterator[None]:
    """Each restart of a node has gone well."""
    yield
    if restarts is not None and restarts.failure is not None:
        raise AssertionError("a node was not restarted") from restarts.failure


@pytest.fixture(scope="session")
def cluster(nodes: Nodes) -> DialogueCluster:
    """The cluster under test, with what it takes to make topics there."""
    return DialogueCluster(nodes)


@pytest.fixture
def wire(cluster: DialogueCluster) -> Iterator[WireClient]:
    """A client that nobody has used."""
    with cluster.connect() as client:
        yield client


@pytest.fixture
def topic(cluster: DialogueCluster) -> str:
    """A new topic with one partition."""
    return cluster.new_topic()


@pytest.fixture
def group() -> str:
    """The name of a group that nobody has used."""
    return unique("group")
