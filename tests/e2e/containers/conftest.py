"""A Docker engine and the image of this source, for the tests of this folder.

The engine is the one that answers at $DOCKER_HOST, or where Docker clients look by themselves.
Without one, or without the base image, every test here is skipped and says why. ODRADEK_TEST_IMAGE
names an image that is built already. The image of the data pipeline is large, so it is not built
here: ODRADEK_TEST_PIPELINE_IMAGE names it, or `container_engine.sh prepare pipeline` has built it.
"""

import os
import socket
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import docker
import pytest
from docker.errors import DockerException, ImageNotFound

from tests.e2e.containers.nodes import ContainerCluster, ContainerNode

REPOSITORY = Path(__file__).parents[3]
IMAGE = "odradek:test"
PIPELINE_IMAGE = "odradek-pipeline:test"
DEFAULT_HOST = "unix:///var/run/docker.sock"
BASE = "python:3.11-slim-bookworm"
"""Of the Dockerfile."""


def check_address(host: str) -> None:
    """OSError if nobody listens there. The SDK does not close its socket then, which is a warning
    and thereby an error here."""
    address = urlsplit(host)
    if address.scheme == "unix":
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(address.path)
    elif address.scheme == "tcp" and address.hostname:
        socket.create_connection((address.hostname, address.port or 2375), 10).close()


@pytest.fixture(scope="session")
def engine() -> Iterator[docker.DockerClient]:
    """A Docker engine that answers."""
    try:
        check_address(os.environ.get("DOCKER_HOST", DEFAULT_HOST))
        client = docker.from_env(timeout=120)
        client.ping()
    except (DockerException, OSError) as error:
        pytest.skip(f"no Docker engine answers: {error}")
    yield client
    client.close()


@pytest.fixture(scope="session")
def image(engine: docker.DockerClient) -> str:
    """The image, built from this source unless ODRADEK_TEST_IMAGE names one."""
    made = os.environ.get("ODRADEK_TEST_IMAGE")
    if made:
        return made
    try:
        engine.images.get(BASE)
    except ImageNotFound:
        try:
            engine.images.pull(BASE)
        except DockerException as error:
            pytest.skip(f"the base image {BASE} cannot be had: {error}")
    engine.images.build(path=str(REPOSITORY), tag=IMAGE, rm=True, forcerm=True)
    return IMAGE


@pytest.fixture(scope="session")
def pipeline_image(engine: docker.DockerClient) -> str:
    """The image of the data pipeline; skips the test without one."""
    name = os.environ.get("ODRADEK_TEST_PIPELINE_IMAGE", PIPELINE_IMAGE)
    try:
        engine.images.get(name)
    except ImageNotFound:
        pytest.skip(f"no image {name}: `container_engine.sh prepare pipeline` builds it in minutes")
    return name


@pytest.fixture
def nodes(engine: docker.DockerClient, image: str) -> Iterator[ContainerCluster]:
    """Nodes of one cluster on a network of their own. Everything is removed at the end of the
    test, whose failure shows the ends of their logs."""
    made = ContainerCluster(engine, image, f"odradek-test-{uuid.uuid4().hex[:8]}")
    try:
        yield made
    finally:
        made.remove()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the logs of the containers of a test that failed."""
    report = yield
    made = getattr(item, "funcargs", {}).get("nodes")
    if call.when == "call" and call.excinfo is not None and isinstance(made, ContainerCluster):
        for node in made.all():
            report.sections.append((f"log of {node.name}", shown_log(node)))
    return report


def shown_log(node: ContainerNode) -> str:
    """The end of a node's log, or why there is none."""
    try:
        return node.log()[-4000:]
    except DockerException as error:
        return f"no log: {error}"
