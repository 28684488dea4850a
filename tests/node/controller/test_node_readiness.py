"""A node serves when it is registered, and is ready when it is unfenced."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from odradek.cluster.controller.commands import BrokerReply, encode_reply
from odradek.cluster.metadata.delta import image_after
from odradek.cluster.metadata.image import BrokerImage, MetadataImage
from odradek.node.bus.endpoint import ipc_address
from odradek.node.bus.peer_messages import ForwardResponse
from odradek.node.controller.broker_lifecycle import BrokerLifecycle
from odradek.node.controller.metadata_publisher import MetadataPublisher
from odradek.node.controller.node_readiness import NodeReadiness, node_processes
from odradek.node.controller.process_liveness import ProcessLiveness
from odradek.node.observability import SupervisorLink
from odradek.protocol.errors import ErrorCode
from tests.support.child_process import node_config
from tests.support.raft_harness import RaftHarness

INCARNATION = b"i" * 16
NOW_MS = 1_000


class Node:
    """A single node without processes, and its supervisor's end of the link."""

    def __init__(self, folder: Path) -> None:
        self.raft = RaftHarness(folder / "log", [0])
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.config = node_config(folder)
        self.answers: list[Callable[[ForwardResponse], None]] = []
        self.publisher = MetadataPublisher(
            self.context,
            ipc_address(folder, "controller"),
            self.raft[0].driver,
            sets_back=True,
            liveness=ProcessLiveness((), timeout_ms=1_000),
        )
        self.lifecycle = BrokerLifecycle(
            self.config,
            INCARNATION,
            lambda _command, _timeout_ms, answer: self.answers.append(answer),
        )
        self.readiness = NodeReadiness(
            self.config,
            SupervisorLink(None, "controller"),
            lifecycle=self.lifecycle,
            publisher=self.publisher,
        )

    def close(self) -> None:
        self.raft.close()
        self.context.destroy(0)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.close()


def is_serving(node: Node) -> bool:
    return node.publisher.is_serving


def test_a_node_serves_when_its_registration_is_in_the_image(node: Node) -> None:
    image = MetadataImage.empty()
    node.readiness.tick(image, NOW_MS)
    node.readiness.serve(image)
    assert not is_serving(node)
    (answer,) = node.answers
    answer(ForwardResponse(0, ErrorCode.NONE, encode_reply(BrokerReply(1)), offset=1))
    node.readiness.serve(image)
    assert not is_serving(node), "the registration is not applied yet"
    node.readiness.serve(image_after(image, [BrokerImage(0, 1, INCARNATION, ())], 1))
    assert is_serving(node)


def test_a_full_disk_does_not_keep_a_single_node_from_serving(node: Node) -> None:
    image = image_after(MetadataImage.empty(), [BrokerImage(0, 1, b"o" * 16, ())], 1)
    node.readiness.tick(image, NOW_MS)
    node.readiness.serve(image)
    assert not is_serving(node), "an earlier start's registration"
    node.answers[0](ForwardResponse(0, ErrorCode.KAFKA_STORAGE_ERROR))
    node.readiness.serve(image)
    assert is_serving(node)


def test_routers_and_workers_apply_the_metadata(node: Node) -> None:
    assert node_processes(node.config, 2) == {"router-0", "worker-0", "worker-1"}
