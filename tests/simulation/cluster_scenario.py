"""A whole cluster with clients, faults and operators, and its obligations after the faults.

The configuration says what may be lost. A killed process loses nothing, and any number of nodes may
be killed at any time. A machine that loses power loses the unsynced ends of its logs, and reports
it after its start. With three replicas, min.insync.replicas=2 and eligible leader replicas
(KIP-966) the cluster tolerates one such loss at a time: no other machine loses power before every
node serves and every partition has its full ISR again. Under these rules no record below a high
watermark is ever lost.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from odradek.cluster.controller.commands import (
    AlterPartitionReassignments,
    Command,
    CreateTopics,
    ElectLeaders,
    NewTopic,
    Reassignment,
)
from odradek.cluster.metadata.delta import MetadataDelta
from odradek.cluster.metadata.image import NO_LEADER, MetadataImage
from odradek.cluster.metadata.records import decode_records
from odradek.cluster.raft.configuration import configuration_of
from odradek.coordinator.share.requests import InitializeShareState, ShareKey
from odradek.coordinator.share.state import ShareState
from odradek.protocol.errors import ApiError
from tests.simulation.broker import GROUP_TOPIC, TRANSACTION_TOPIC
from tests.simulation.clients import TOPIC, Producer, SimulatedConsumer, SimulatedMember
from tests.simulation.cluster_checker import ClusterChecker
from tests.simulation.cluster_node import ClusterNode
from tests.simulation.consumers import (
    CHANGELOG,
    CONSUMERS,
    STREAMS,
    SUBTOPOLOGY,
    ConsumerDialect,
    ConsumerMember,
    StreamsDialect,
)
from tests.simulation.ledger import Ledger
from tests.simulation.ownership import Place
from tests.simulation.payers import Auditor, Payer
from tests.simulation.raft_checker import RaftChecker
from tests.simulation.raft_host import RaftHost
from tests.simulation.rewinder import Rewinder
from tests.simulation.share_host import GROUP as SHARE_GROUP
from tests.simulation.share_host import SHARE_TOPIC
from tests.simulation.share_members import ShareMember
from tests.simulation.short_lived_payers import ShortLivedPayer
from tests.simulation.simulation import Simulation, SimulationFailure, Violation
from tests.simulation.trouble import Trouble
from tests.simulation.wires import Wires
from tests.support.metadata_history import have_same_content

TOPIC_ID = bytes(15) + b"\x01"
GROUP_TOPIC_ID = bytes(15) + b"\x02"
TRANSACTION_TOPIC_ID = bytes(15) + b"\x04"
CHANGELOG_ID = bytes(15) + b"\x05"
SHARE_TOPIC_ID = bytes(7) + b"\x01" + bytes(7) + b"\x03"
_BEGINNING_MS = 10_000
_HEALING_MS = 20_000
_SHUTDOWN_MS = 3_000
"""controlled.shutdown.timeout.ms"""
_HEALING_STEP_MS = 500


class ClusterScenario:
    """One run of one seed."""

    def __init__(self, seed: int, trouble: Trouble) -> None:
        self.simulation = Simulation(seed)
        self.trouble = trouble
        self.wires = Wires(self.simulation)
        self.nodes: dict[int, ClusterNode] = {}
        self.checker = ClusterChecker(self.simulation, self.nodes)
        hosts: dict[int, RaftHost] = {}
        self.raft_checker = RaftChecker(hosts)
        self.loss_share = trouble.client_loss_share
        self._random = self.simulation.random
        self._is_over = False
        self._is_unclean = False
        self.simulation.checks += [self.raft_checker.check, self.checker.check]
        voters = configuration_of(range(1, trouble.node_count + 1))
        for own_id in voters.voter_ids:
            node = ClusterNode(
                self.simulation,
                own_id,
                voters,
                trouble.settings,
                self.raft_checker,
                wires=self.wires,
                watcher=self.checker,
            )
            node.clock_rate += (2 * self._random.random() - 1) * trouble.clock_drift
            node.slow_share = trouble.slow_share
            node.store_disk.sync_interval_ms = self._random.choice((200, 1_000, 3_000))
            hosts[own_id] = self.nodes[own_id] = node
            self.simulation.add_host(own_id, node)
        places = [(TOPIC_ID, number) for number in range(trouble.partition_count)]
        acks = [-1 if self._random.random() < 0.75 else 1 for _ in places]
        self.producers = [
            Producer(self, 100 + number, place, -1) for number, place in enumerate(places)
        ]
        self.producers += [
            Producer(self, 200 + number, place, acks[number]) for number, place in enumerate(places)
        ]
        self.consumers = [SimulatedConsumer(self, place) for place in places]
        self.members = [
            SimulatedMember(self, "group", GROUP_TOPIC_ID, trouble.partition_count + 1)
            for _ in range(trouble.member_count)
        ]
        self.ledger = Ledger()
        self.payers = [
            Payer(
                self,
                self.ledger,
                number,
                TOPIC_ID,
                trouble.partition_count,
                coordinators=((TRANSACTION_TOPIC_ID, 0), (GROUP_TOPIC_ID, 0)),
                version=1 + number % 2,
                restart_share=trouble.payer_restart_share,
            )
            for number in range(trouble.payer_count)
        ]
        self.short_lived_payers = [
            ShortLivedPayer(
                self,
                self.ledger,
                trouble.payer_count + number,
                TOPIC_ID,
                trouble.partition_count,
                coordinators=((TRANSACTION_TOPIC_ID, 0), (GROUP_TOPIC_ID, 0)),
            )
            for number in range(trouble.short_lived_payer_count)
        ]
        self.payers += self.short_lived_payers
        self.auditors = [Auditor(self, self.ledger, place) for place in places if self.payers]
        self.rewinder = (
            Rewinder(self, CONSUMERS, GROUP_TOPIC_ID, trouble.partition_count, TOPIC_ID)
            if trouble.consumer_member_count
            else Rewinder(self, "group", GROUP_TOPIC_ID, trouble.partition_count + 1)
        )
        self.consumer_members = [
            ConsumerMember(self, number, ConsumerDialect(TOPIC_ID), GROUP_TOPIC_ID)
            for number in range(trouble.consumer_member_count)
        ]
        self.consumer_members += [
            ConsumerMember(self, number, StreamsDialect(number, self._random), GROUP_TOPIC_ID)
            for number in range(trouble.streams_member_count)
        ]
        self.share_members = [
            ShareMember(self, number, place)
            for place in places
            for number in range(trouble.share_member_count)
        ]
        self._topics = [
            (TOPIC, TOPIC_ID, trouble.partition_count),
            (GROUP_TOPIC, GROUP_TOPIC_ID, 1),
        ]
        if trouble.streams_member_count:
            self._topics.append((CHANGELOG, CHANGELOG_ID, trouble.partition_count))
        if self.share_members:
            self._topics.append((SHARE_TOPIC, SHARE_TOPIC_ID, 1))
        if self.payers:
            self._topics.append((TRANSACTION_TOPIC, TRANSACTION_TOPIC_ID, 1))

    def run(self) -> None:
        """Faults, then healing. Raises SimulationFailure with the seed."""
        self.begin()
        self.simulation.run(self.trouble.duration_ms)
        self._heal()

    def begin(self) -> None:
        """Start a cluster with its topics; from then on faults are injected."""
        self._create_topics()
        for _ in range(_BEGINNING_MS // 100):
            self.simulation.run(100)
            if self._is_whole():
                break
        else:
            self._fail("the cluster does not begin")
        if self.share_members:
            self._begin_to_share()
        trouble, network = self.trouble, self.simulation.network
        network.delay_ms_max = trouble.delay_ms_max
        network.drop_share = trouble.drop_share
        network.double_share = trouble.double_share
        network.late_copy_share = trouble.late_copy_share
        self.wires.break_share = trouble.break_share
        for interval_ms, what in (
            (trouble.kill_interval_ms, self._kill),
            (trouble.power_interval_ms, self._lose_power),
            (trouble.worker_interval_ms, self._kill_worker),
            (trouble.shutdown_interval_ms, self._shut_down),
            (trouble.cut_interval_ms, self._cut),
            (trouble.stop_interval_ms, self._stop),
            (trouble.slow_disk_interval_ms, self._slow_disk),
            (trouble.leap_interval_ms, self._leap),
            (trouble.snapshot_interval_ms, self._snapshot),
            (trouble.reassign_interval_ms, self._reassign),
            (trouble.elect_interval_ms, self._elect),
            (trouble.depose_interval_ms, self._depose),
            (trouble.waver_interval_ms, self._waver),
            (trouble.leave_interval_ms, self._leave),
            (trouble.rewind_interval_ms, self.rewinder.act),
        ):
            if interval_ms:
                self._repeat(interval_ms, what)
        for producer in self.producers:
            self._repeat(trouble.produce_interval_ms, producer.act, is_client=True)
        for consumer in self.consumers:
            self._repeat(trouble.consume_interval_ms, consumer.act, is_client=True)
        for member in self._everybody():
            self._repeat(trouble.member_interval_ms, member.act, is_client=True)
        for payer in self.payers:
            self._repeat(trouble.payer_interval_ms, payer.act, is_client=True)
        for auditor in self.auditors:
            self._repeat(trouble.consume_interval_ms, auditor.act, is_client=True)
        for share_member in self.share_members:
            self._repeat(trouble.share_interval_ms, share_member.act, is_client=True)

    def _repeat(
        self, interval_ms: int, what: Callable[[], None], *, is_client: bool = False
    ) -> None:
        def happen() -> None:
            if is_client or not self._is_over:
                what()
                self.simulation.after(self._random.randrange(1, 2 * interval_ms), happen)

        self.simulation.after(self._random.randrange(2 * interval_ms), happen)

    # -- operators ---------------------------------------------------------------------------------

    def _submit(self, command: Command) -> None:
        running = [i for i in self.nodes if self.simulation.is_running(i)]
        if running:
            own_id = self._random.choice(running)
            node = self.nodes[own_id]
            self.simulation.after_on(
                own_id, 0, lambda: node.submit(command, lambda _carried: None, 2_000)
            )

    def _create_topics(self) -> None:
        """Repeated until there are enough brokers."""
        for name, topic_id, count in self._topics:
            if topic_id not in self.checker.image.topics_by_id:
                self._submit(CreateTopics((NewTopic(name, topic_id, count, 3),)))
        if len(self.checker.image.topics_by_id) < len(self._topics):
            self.simulation.after(150, self._create_topics)

    def _begin_to_share(self) -> None:
        """As the coordinator of a share group does before its first member gets an assignment."""
        for partition in range(self.trouble.partition_count):
            for _ in range(_BEGINNING_MS // 100):
                states = self.nodes[1].router.shares.states
                reply = states.call(
                    InitializeShareState(
                        ShareKey(SHARE_GROUP, TOPIC_ID, partition), state_epoch=1, start_offset=0
                    )
                )
                self.simulation.run(100)
                with suppress(ApiError):
                    if reply.is_done:
                        reply.result()
                        break
            else:
                self._fail("no share group begins")

    def _reassign(self) -> None:
        """Reassign a partition, or change or cancel its reassignment."""
        places = [(name, number) for name, _, count in self._topics for number in range(count)]
        topic, number = places[self._random.randrange(len(places))]
        ids = list(self.nodes)
        self._random.shuffle(ids)
        target = None if self._random.random() < 0.15 else tuple(ids[:3])
        self.simulation.note(f"{topic}-{number} shall be on {target}")
        self._submit(AlterPartitionReassignments((Reassignment(topic, number, target),)))

    def _elect(self) -> None:
        self._submit(ElectLeaders(0, None))

    def _depose(self) -> None:
        """Elect another leader; the router of the old leader gets no metadata for a while. With
        transactions the coordinator's partition is chosen; its markers then come late."""
        topic, topic_id = TOPIC, TOPIC_ID
        if self.payers:
            topic, topic_id = TRANSACTION_TOPIC, TRANSACTION_TOPIC_ID
        state = self.checker.image.partition(topic_id, 0)
        if state is None or state.leader == NO_LEADER or len(state.replicas) != 3:
            return
        leader = state.leader
        if self.simulation.is_running(leader):
            node, for_ms = self.nodes[leader], self._random.randrange(200, 1_200)
            if self.payers and self._random.random() < 0.5:
                node.router.ends.hold_up_markers(for_ms)
            else:
                node.to_router.hold_up(for_ms)
        others = [replica for replica in state.replicas if replica != leader]
        self._random.shuffle(others)
        self.simulation.note(f"{leader} shall not lead {topic}-0 any more")
        self._lead(topic, (*others, leader), 60)

    def _waver(self) -> None:
        """A follower does not receive from the leader for a while. Then they swap leadership,
        twice."""
        topic, topic_id, _ = self._random.choice(self._topics)
        state = self.checker.image.partition(topic_id, 0)
        if state is None or state.leader == NO_LEADER or len(state.in_sync_replicas) != 3:
            return
        leader = state.leader
        follower, other = (replica for replica in state.replicas if replica != leader)
        network = self.simulation.network
        network.split([leader], [follower])
        at_ms = self._random.randrange(100, 500)
        for order in ((follower, leader, other), (leader, follower, other)):
            self.simulation.after(at_ms, partial(self._lead, topic, order, 5))
            at_ms += self._random.randrange(20, 80)
        self.simulation.after(at_ms, network.heal)
        at_ms += self._random.randrange(20, 80)
        self.simulation.after(at_ms, partial(self._lead, topic, (follower, leader, other), 5))

    def _lead(self, topic: str, replicas: tuple[int, ...], after_ms: int) -> None:
        """Elect the first replica of a partition as its leader."""
        self._submit(AlterPartitionReassignments((Reassignment(topic, 0, replicas),)))
        self.simulation.after(after_ms, self._elect)

    def _leave(self) -> None:
        if self.share_members and self._random.random() < 0.5:
            self._random.choice(self.share_members).leave()
            return
        member = self._random.choice(self._everybody())
        if self._random.random() < 0.5:
            member.leave()
        else:
            member.silent_until_ms = self.simulation.now_ms + self._random.randrange(200, 2_000)

    def _snapshot(self) -> None:
        own_id = self._random.choice(list(self.nodes))
        if self.simulation.is_running(own_id):
            node, kept = self.nodes[own_id], self._random.choice((0, 3, 20))
            self.simulation.after_on(own_id, 0, lambda: node.take_snapshot(kept))

    # -- faults ------------------------------------------------------------------------------------

    def _victim(self) -> int:
        ids = list(self.nodes)
        if self._random.random() < self.trouble.leader_share:
            leaders = [
                state.leader
                for topic in self.checker.image.topics_by_id.values()
                for state in topic.partitions
                if state.leader != NO_LEADER
            ]
            if leaders:
                return self._random.choice(leaders)
        return self._random.choice(ids)

    def _kill(self) -> None:
        own_id = self._victim()
        if self.simulation.is_running(own_id):
            self._end(own_id)

    def _end(self, own_id: int) -> None:
        self.simulation.crash(own_id)
        down_ms = self._random.randrange(1, self.trouble.down_ms_max)
        self.simulation.after(down_ms, lambda: self._start(own_id))

    def _start(self, own_id: int) -> None:
        if not self.simulation.is_running(own_id):
            self.simulation.start(own_id)

    def _lose_power(self) -> None:
        """One machine at a time, and only in a healthy cluster."""
        if self._is_unclean and not self._is_whole():
            return
        self._is_unclean = False
        own_id = self._victim()
        if not self.simulation.is_running(own_id) or not self._is_whole():
            return
        self._is_unclean = True
        lost = self.nodes[own_id].lose_power()
        self.simulation.note(f"{own_id} loses power and {len(lost)} batches")
        self.checker.power_lost(own_id, lost)
        self._end(own_id)

    def _kill_worker(self) -> None:
        own_id = self._victim()
        node = self.nodes[own_id]
        if self.simulation.is_running(own_id) and not node.worker.is_ended:
            self.simulation.note(f"the worker of {own_id} is killed")
            node.kill_worker()
            self.simulation.after_on(own_id, self._random.randrange(1, 300), node.start_worker)

    def _shut_down(self) -> None:
        """Controlled shutdown; after a timeout also without new leaders elsewhere."""
        own_id = self._victim()
        node = self.nodes[own_id]
        if not self.simulation.is_running(own_id) or node.wants_shut_down:
            return
        self.simulation.note(f"{own_id} wants to shut down")
        node.wants_shut_down = True
        incarnation, deadline_ms = node.incarnation, self.simulation.now_ms + _SHUTDOWN_MS

        def look() -> None:
            if node.incarnation != incarnation or not self.simulation.is_running(own_id):
                return
            if node.should_shut_down or self.simulation.now_ms >= deadline_ms:
                self.simulation.note(f"{own_id} shuts down")
                node.worker.store.close()
                self._end(own_id)
            else:
                self.simulation.after(50, look)

        look()

    def _cut(self) -> None:
        simulation, victim = self.simulation, self._victim()
        ids = [own_id for own_id in self.nodes if own_id != victim]
        self._random.shuffle(ids)
        count = self._random.choice((0, 0, 1))
        some, others = [victim, *ids[:count]], ids[count:]
        if self._random.random() < 0.35:
            some, others = (some, others) if self._random.random() < 0.5 else (others, some)
            simulation.note(f"nothing passes from {some} to {others}")
            simulation.network.cut(some, others)
        else:
            simulation.note(f"nothing passes between {some} and {others}")
            simulation.network.split(some, others)
        simulation.after(
            self._random.randrange(1, self.trouble.cut_ms_max), simulation.network.heal
        )

    def _stop(self) -> None:
        own_id = self._victim()
        if self.simulation.is_running(own_id):
            self.simulation.stop(own_id, self._random.randrange(1, self.trouble.stop_ms_max))

    def _leap(self) -> None:
        """A node's clock jumps ahead."""
        own_id = self._victim()
        if not self.simulation.is_running(own_id):
            return
        node, by_ms = self.nodes[own_id], self._random.choice((300, 1_000, 4_000))

        def leap() -> None:
            self.simulation.note(f"the clock of {own_id} leaps by {by_ms} ms")
            node.clock_lead_ms += by_ms

        self.simulation.after_on(own_id, 0, leap)

    def _slow_disk(self) -> None:
        node = self.nodes[self._random.choice(list(self.nodes))]
        node.disk.sync_ms_max = self._random.choice((0, 2, 10, 60, 200))

    # -- the end -----------------------------------------------------------------------------------

    def _is_whole(self) -> bool:
        """Whether every partition has its leader and its full ISR, and every node serves in this
        start."""
        image = self.checker.image
        return (
            len(image.topics_by_id) == len(self._topics)
            and all(self.simulation.is_running(own_id) for own_id in self.nodes)
            and all(
                own_id in image.brokers
                and not image.brokers[own_id].is_fenced
                and image.brokers[own_id].incarnation_id == node.incarnation_id
                for own_id, node in self.nodes.items()
            )
            and all(
                state.leader != NO_LEADER
                and set(state.in_sync_replicas) == set(state.replicas)
                and len(state.replicas) == 3
                for topic in image.topics_by_id.values()
                for state in topic.partitions
            )
        )

    def _heal(self) -> None:
        """End every fault, and wait up to twenty seconds until the cluster is healthy."""
        simulation = self.simulation
        self._is_over = True
        simulation.note("everything is healed")
        network = simulation.network
        network.heal()
        network.delay_ms_max = 5
        network.drop_share = network.double_share = network.late_copy_share = 0.0
        self.wires.break_share = self.loss_share = 0.0
        for own_id, node in self.nodes.items():
            node.disk.sync_ms_max = 4
            if not simulation.is_running(own_id):
                simulation.start(own_id)
        for member in self._everybody():
            member.silent_until_ms = 0
        marks: list[int] | None = None
        for _ in range(_HEALING_MS // _HEALING_STEP_MS):
            simulation.run(_HEALING_STEP_MS)
            if marks is None:
                is_stable = all(member.is_stable for member in self._everybody())
                if self._is_whole() and is_stable and not self._unread():
                    marks = self._marks()
            elif all(now > mark for now, mark in zip(self._marks(), marks, strict=True)):
                break
        else:
            partitions = [
                (state.leader, state.in_sync_replicas, state.replicas)
                for topic in self.checker.image.topics_by_id.values()
                for state in topic.partitions
            ]
            members = [(m.phase.name, m.generation) for m in self.members]
            members += [(m.member_id, m.epoch) for m in self.consumer_members]
            self._fail(
                f"not whole again after {_HEALING_MS} ms: {partitions=} {members=}"
                f" {self._unread()=} {marks=} {self._marks()=}"
            )
        if self.payers:
            self._settle_payments()
        self._check_end()

    def _everybody(self) -> list[SimulatedMember | ConsumerMember]:
        return [*self.members, *self.consumer_members]

    def _unread(self) -> set[Place]:
        """Partitions that no member of the groups with heartbeats has been assigned."""
        unread, indexes = self.checker.ownership.unread, range(self.trouble.partition_count)
        found: set[Place] = set()
        if self.trouble.consumer_member_count:
            found |= unread(CONSUMERS, [Place(TOPIC_ID, at) for at in indexes])
        if self.trouble.streams_member_count:
            found |= unread(STREAMS, [Place(SUBTOPOLOGY, at) for at in indexes])
        return found

    def _settle_payments(self) -> None:
        """Payers begin no new transaction; the open ones end, and none holds back the last
        stable offset."""
        for payer in self.payers:
            payer.is_stopping = True
        for _ in range(_HEALING_MS // _HEALING_STEP_MS):
            self.simulation.run(_HEALING_STEP_MS)
            if all(payer.is_idle for payer in self.payers) and not self._held_back():
                return
        steps = [(payer.name, payer.step.name) for payer in self.payers]
        self._fail(f"transactions do not end: held back are {self._held_back()}, {steps=}")

    def _held_back(self) -> list[str]:
        """The partitions whose last stable offset is below their high watermark."""
        found = []
        for topic in self.checker.image.topics_by_id.values():
            for number, state in enumerate(topic.partitions):
                store = self.nodes[state.leader].worker.store
                local = store.number_of(topic.topic_id, number)
                log = None if local is None else store.partitions().get(local)
                if log is None or log.last_stable_offset < log.high_watermark:
                    found.append(f"{topic.name}-{number}")
        return found

    def _check_payments(self) -> None:
        histories = self.checker.histories

        def batches(identity: tuple[bytes, int]) -> list[tuple[int, bytes]]:
            known = histories.get(identity)
            return [] if known is None else [(b.base_offset, b.data) for b in known.batches]

        places = range(self.trouble.partition_count)
        self.ledger.check_end((place, batches((TOPIC_ID, place))) for place in places)
        self.ledger.check_offsets(batches((GROUP_TOPIC_ID, 0)))

    def _marks(self) -> list[int]:
        """Counters that must grow when everything works: writes, reads and commits."""
        ends = [self.checker.histories[producer.identity].end_offset for producer in self.producers]
        counts = [p.acknowledged_count for p in self.producers if p.acks == -1]
        payments = [payer.ended_count for payer in self.payers]
        marks = [*ends, *counts, self.checker.read_count, *payments]
        if self.members:
            marks.append(sum(member.commit_count for member in self.members))
        if self.share_members:
            marks.append(self.checker.shares.accepted_count)
        return [*marks, *(member.beat_count for member in self.consumer_members)]

    def _check_end(self) -> None:
        try:
            self.checker.check_answered(4_000)
            self.checker.check_all_complete()
            self._check_payments()
            self._check_images()
            if self.share_members:
                self.checker.shares.check_durable(self._share_states())
        except Violation as error:
            raise SimulationFailure(self.simulation.report(error)) from error

    def _share_states(self) -> dict[ShareKey, ShareState]:
        """The states in the shard's leader, once it is loaded."""
        while True:
            state = self.checker.image.partition(SHARE_TOPIC_ID, 0)
            assert state is not None
            if state.leader != NO_LEADER:
                for shard in self.nodes[state.leader].router.shares.active_shards():
                    return dict(shard.states.committed_items())
            self.simulation.run(100)

    def _check_images(self) -> None:
        """All nodes with the same applied index have the same image, and so does the log."""
        newest = max(self.nodes.values(), key=lambda node: node.image.offset)
        for node in self.nodes.values():
            if node.image.offset == newest.image.offset and not have_same_content(
                node.image, newest.image
            ):
                raise Violation(f"{node.own_id} and {newest.own_id} have different metadata")
        disk = newest.disk.state
        if disk.snapshot is None and disk.previous_index == 0:
            delta = MetadataDelta(MetadataImage.empty())
            for entry in disk.entries[: newest.image.offset]:
                for record in decode_records(entry.data) if entry.is_command else ():
                    delta.replay(record)
            if not have_same_content(delta.apply(newest.image.offset), newest.image):
                raise Violation(f"{newest.own_id} has other metadata than its log")

    def _fail(self, text: str) -> None:
        raise SimulationFailure(self.simulation.report(Violation(text)))
