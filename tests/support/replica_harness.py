"""Workers of several nodes in one process: real stores, real turns, real sockets on loopback.

The test is the controller: `lead` decides leaders and in-sync replicas, and every node that is not
cut off applies it. The clock moves with the rounds, and by hand.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import zmq

from odradek.cluster.metadata.delta import MetadataDelta
from odradek.cluster.metadata.image import MetadataImage, PartitionImage
from odradek.cluster.metadata.records import PartitionChanged, PartitionsAdded, Record, TopicCreated
from odradek.cluster.replication.leader import IsrProposal
from odradek.node.bus.curve import KeyPair
from odradek.node.bus.messages import AppendBytes, Appended, DeleteRecords, RequestFailed, ToRouter
from odradek.node.worker.hosted_partitions import HostedPartitions
from odradek.node.worker.replica_fetchers import ReplicaNetwork
from odradek.node.worker.replication import Replication
from odradek.node.worker.turn_requests import RouterState
from odradek.node.worker.turns import TurnExecutor
from odradek.storage.layout import store_folder
from odradek.storage.partition_log import PartitionLog
from odradek.storage.reader import StoreReader
from odradek.storage.settings import StoreOptions
from odradek.storage.store import Store
from tests.support.ports import free_port
from tests.support.stores import read_all
from tests.support.waiting import wait_until

Context: TypeAlias = "zmq.Context[zmq.Socket[bytes]]"
CLUSTER_ID = "cluster-of-the-room"
TOPIC_ID = bytes(15) + b"\x07"
ROUND_MS = 5
OPTIONS = StoreOptions(segment_map_bytes=256 << 20, status_slots=1 << 10)


class HarnessNode:
    """One node with one worker, which a test starts and stops."""

    def __init__(self, harness: "ReplicaHarness", node_id: int) -> None:
        self.harness = harness
        self.node_id = node_id
        self.folder = harness.folder / str(node_id)
        self.broadcast: list[ToRouter] = []
        self.router = RouterState()
        self.proposals: list[IsrProposal] = []
        self.image = MetadataImage.empty()
        self.is_running = False
        self._incarnation = 0
        # Clients are authenticated by their context.
        self.context: Context = zmq.Context() if harness.keys else harness.context

    def start(self) -> None:
        """Open the stores and the sockets, and apply the newest image."""
        harness = self.harness
        self._incarnation += 1
        self.router = RouterState()
        self.partitions = HostedPartitions(
            folders=(self.folder,),
            worker=0,
            worker_count=1,
            store_count=harness.store_count,
            node_id=self.node_id,
            static_configs=harness.configs,
            options=OPTIONS,
            now_ms=harness.now_ms,
        )
        self.turns = TurnExecutor(self.partitions, self.broadcast.append)
        self.replication = Replication(
            self.context,
            self.partitions,
            self.turns,
            ReplicaNetwork(
                CLUSTER_ID,
                self.node_id,
                f"{self.node_id}-0-{self._incarnation}".encode(),
                harness.addresses[self.node_id],
                harness.address_of,
                harness.keys,
            ),
            stores_folders=(self.folder,),
            watch=lambda _: None,
            propose=self.proposals.extend,
            now_ms=harness.now_ms,
        )
        self.is_running = True
        self.follow()

    def stop(self) -> None:
        """Stop the node; its disk is kept."""
        self.is_running = False
        self.replication.close()
        self.partitions.close()

    def follow(self) -> None:
        """Apply the newest image."""
        self.image = self.harness.image
        self.partitions.apply_image(self.image)
        while self.partitions.is_outdated:
            self.partitions.update_outdated()
        self.replication.apply_image(self.image, self.harness.now_ms)

    def run(self, requests: Sequence[tuple[RouterState, AppendBytes | DeleteRecords]] = ()) -> None:
        """One round of the worker's loop."""
        self.replication.server.authenticate()
        now_ms = self.harness.now_ms
        wanted = [*requests, *self.replication.receive(now_ms)]
        if wanted:
            self.turns.run(wanted, now_ms)
        self.replication.after_turn(now_ms)
        self.replication.tick(now_ms)

    def append(
        self,
        request_id: int,
        batch: bytes,
        partition: int = 0,
        *,
        acks: int = -1,
        timeout_ms: int = 30_000,
    ) -> None:
        """A router's request for an append."""
        store, number = self.place(partition)
        request = AppendBytes(
            request_id, store, number, batch, is_client=True, acks=acks, timeout_ms=timeout_ms
        )
        self.run([(self.router, request)])

    def answers(self) -> dict[int, int]:
        """Error code by request id, of all answers so far."""
        found = {
            reply.request_id: int(reply.error_code)
            for reply in self.router.replies
            if isinstance(reply, Appended | RequestFailed)
        }
        self.router.replies.clear()
        return found

    def place(self, partition: int = 0) -> tuple[int, int]:
        place = self.partitions.location_of(TOPIC_ID, partition)
        assert place is not None
        return place

    def store(self, partition: int = 0) -> Store:
        return self.partitions.stores[self.place(partition)[0]]

    def log(self, partition: int = 0) -> PartitionLog:
        return self.store(partition).partitions()[self.place(partition)[1]]

    def batches(self, partition: int = 0) -> list[bytes]:
        """The content of the log, byte by byte."""
        reader = StoreReader(store_folder((self.folder,), self.place(partition)[0]))
        try:
            return read_all(reader, self.place(partition)[1])
        finally:
            reader.close()


class ReplicaHarness:
    """Nodes 0, 1, ... and the metadata."""

    def __init__(
        self,
        folder: Path,
        node_count: int = 2,
        *,
        store_count: int = 1,
        keys: tuple[KeyPair, ...] = (),
        **configs: str,
    ) -> None:
        self.folder = folder
        self.store_count = store_count
        self.keys = keys
        self.configs = {key.replace("_", "."): value for key, value in configs.items()}
        self.context: Context = zmq.Context()
        self.addresses = [f"tcp://127.0.0.1:{free_port()}" for _ in range(node_count)]
        self.now_ms = 1_700_000_000_000
        self.image = MetadataImage.empty()
        self.nodes = [HarnessNode(self, node_id) for node_id in range(node_count)]

    def address_of(self, node_id: int, store: int) -> str | None:
        return self.addresses[node_id]

    def decide(self, *records: Record) -> None:
        delta = MetadataDelta(self.image)
        for record in records:
            delta.replay(record)
        self.image = delta.apply(self.image.offset + 1)

    def start(self, state: PartitionImage, partitions: int = 1) -> None:
        """Create a topic whose partitions are all in this state, and start every node."""
        self.decide(
            TopicCreated("topic", TOPIC_ID), PartitionsAdded(TOPIC_ID, 0, (state,) * partitions)
        )
        for node in self.nodes:
            node.start()

    def change(self, state: PartitionImage, *, partition: int = 0) -> None:
        """Change a partition in the metadata of every running node."""
        self.decide(PartitionChanged(TOPIC_ID, partition, state))
        for node in self.running():
            node.follow()

    def running(self) -> list[HarnessNode]:
        return [node for node in self.nodes if node.is_running]

    def run_until(self, condition: Callable[[], bool], what: str) -> None:
        """Run all nodes until the condition holds."""

        def has_come() -> bool:
            self.now_ms += ROUND_MS
            for node in self.running():
                node.run()
            return condition()

        wait_until(has_come, what=what)

    def settle(self, partition: int = 0) -> None:
        """Run until all running replicas have the same log and high watermark."""

        def agree() -> bool:
            logs = [node.log(partition) for node in self.running()]
            return (
                len({(log.log_end_offset, log.high_watermark) for log in logs}) == 1
                and logs[0].high_watermark == logs[0].log_end_offset
            )

        self.run_until(agree, "all replicas agree")

    def close(self) -> None:
        for node in self.running():
            node.stop()
        for node in self.nodes:
            node.context.destroy(linger=0)
        self.context.destroy(linger=0)
