"""SIGKILL of a group's coordinator during a rebalance, on three nodes.

Its router, its worker or the whole node is killed while JoinGroup or SyncGroup waits, or between
two heartbeats of a consumer group. The members speak the wire protocol, so that every error code is
checked. Members keep their ids, also those that are in no stored generation yet, and the group
becomes stable. The outage is printed.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

import pytest

from bench.promises import ROUTER_KILL_HEARTBEAT_S, SLACK
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from odradek.protocol.messages.partitions import TopicIdPartitions
from odradek.protocol.types import Uuid
from tests.conformance.members import subscription
from tests.e2e.cluster import Cluster, running_cluster
from tests.e2e.conftest import Report
from tests.support.waiting import wait_until
from tests.support.wire import ClosedByPeer, WireClient

pytestmark = pytest.mark.slow

NODES = 3
MEMBERS = 3
PARTITIONS = 6
TOPIC = "orders"
VICTIMS = ("router-0", "worker-0", "node")
WAIT_S = 30.0
LOOK_AGAIN = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)

Answer = TypeVar("Answer")


def coordinator_of(cluster: Cluster, group: str) -> tuple[int, str] | None:
    """The coordinator of the group, and its address, from any running node."""
    for node in cluster.nodes.values():
        with (
            suppress(OSError, ClosedByPeer),
            WireClient(node.bootstrap_servers, timeout_s=2.0) as wire,
        ):
            answer = wire.ask(FindCoordinatorRequest(key=group), 3, FindCoordinatorResponse)
            if not answer.error_code:
                return answer.node_id, f"{answer.host}:{answer.port}"
    return None


class Follower:
    """A connection to the group's coordinator. Requests are repeated until it answers. `told` has
    the other error codes of the responses."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._wire: WireClient | None = None
        self.told: list[ErrorCode] = []
        # The time of the first response after the kill.
        self.answered_at: float | None = None

    def ask(self, request: object, version: int, response: type[Answer]) -> Answer:
        """The first response of the group's coordinator."""
        answer = wait_until(
            lambda: self._try(request, version, response),
            timeout_s=WAIT_S,
            what=f"{type(request).__name__} of {self._group} is answered",
        )
        assert answer is not None
        return answer

    def _try(self, request: object, version: int, response: type[Answer]) -> Answer | None:
        try:
            if self._wire is None:
                found = coordinator_of(self._cluster, self._group)
                if found is None:
                    return None
                self._wire = WireClient(found[1], timeout_s=WAIT_S)
            answer = self._wire.ask(request, version, response)
        except (OSError, ClosedByPeer):
            self.close()
            return None
        code = ErrorCode(getattr(answer, "error_code", 0))
        if code in LOOK_AGAIN:
            self.close()
            return None
        if code is not ErrorCode.NONE:
            self.told.append(code)
        if self.answered_at is None:
            self.answered_at = time.monotonic()
        return answer

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None


class ClassicMember:
    """A member of the classic protocol that follows the responses."""

    def __init__(self, stage: "Stage", group: str) -> None:
        self.group = group
        self.coordinator = stage.follower(group)
        self.id = ""
        self.generation = -1
        self.has_assignment = False
        self.leads = False
        self.others: list[str] = []

    def join(self) -> None:
        """JoinGroup, until the member is in a generation."""
        self.has_assignment = False
        while True:
            request = JoinGroupRequest(
                group_id=self.group,
                session_timeout_ms=20_000,
                rebalance_timeout_ms=20_000,
                member_id=self.id,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=subscription(TOPIC))],
            )
            answer = self.coordinator.ask(request, 7, JoinGroupResponse)
            if answer.error_code == ErrorCode.NONE:
                break
            assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED, ErrorCode(answer.error_code)
            self.id = answer.member_id
        self.id, self.generation = answer.member_id, answer.generation_id
        self.leads = answer.leader == self.id
        self.others = [member.member_id for member in answer.members]

    def sync(self) -> None:
        """SyncGroup: returns whether it has an assignment; otherwise it must join again."""
        given = [
            SyncGroupRequestAssignment(member_id=member_id, assignment=member_id.encode())
            for member_id in self.others
        ]
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=given,
        )
        answer = self.coordinator.ask(request, 5, SyncGroupResponse)
        if answer.error_code == ErrorCode.NONE:
            assert answer.assignment == self.id.encode()
            self.has_assignment = True

    def rejoin(self) -> None:
        """Join and sync until it has an assignment."""
        self.join()
        self.follow()

    def follow(self) -> None:
        """Sync, and join again as often as needed."""
        self.sync()
        while not self.has_assignment:
            self.join()
            self.sync()

    def settle(self, members: "Sequence[ClassicMember]") -> None:
        """Send heartbeats and follow the responses until the members share one generation."""

        def is_shared() -> bool:
            if self.heartbeat() is not ErrorCode.NONE:
                self.rejoin()
            return share_a_generation(members)

        wait_until(is_shared, timeout_s=WAIT_S, what="the members are in one generation")

    def follow_and_settle(self, members: "Sequence[ClassicMember]") -> None:
        self.follow()
        self.settle(members)

    def rejoin_and_settle(self, members: "Sequence[ClassicMember]") -> None:
        self.rejoin()
        self.settle(members)

    def heartbeat(self) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=self.group, generation_id=self.generation, member_id=self.id
        )
        return ErrorCode(self.coordinator.ask(request, 3, HeartbeatResponse).error_code)


class Stage:
    """A cluster whose processes are killed by their role in a group, and started again."""

    def __init__(self, cluster: Cluster, pool: ThreadPoolExecutor) -> None:
        self.cluster = cluster
        self.pool = pool
        self.killed_at = 0.0
        self._followers: list[Follower] = []

    def follower(self, group: str) -> Follower:
        """A connection to the group's coordinator, closed with the stage."""
        follower = Follower(self.cluster, group)
        self._followers.append(follower)
        return follower

    def close(self) -> None:
        for follower in self._followers:
            follower.close()

    def state_of(self, group: str) -> str:
        """The state of a classic group in DescribeGroups."""
        request = DescribeGroupsRequest(groups=[group])
        answer = self.follower(group).ask(request, 5, DescribeGroupsResponse)
        return answer.groups[0].group_state

    def all(self, *actions: Callable[[], object]) -> list[Future[object]]:
        """Run all of them in threads."""
        return [self.pool.submit(action) for action in actions]

    def kill(self, victim: str, group: str) -> int:
        """Kill a process of the group's coordinator, or all of them; returns the node's id."""
        found = coordinator_of(self.cluster, group)
        assert found is not None
        node = self.cluster[found[0]]
        self.killed_at = time.monotonic()
        for follower in self._followers:
            follower.answered_at = None
        if victim == "node":
            node.kill()
        else:
            node.kill_process(victim)
        return found[0]

    def heal(self, victim: str, node_id: int) -> None:
        """Wait until the killed processes are back and every replica is in sync."""
        if victim == "node":
            self.cluster.start(node_id)
        else:
            self.cluster[node_id].wait_until_ready()
        self.cluster.wait_until_whole("__consumer_offsets")

    def outage_s(self, followers: Iterable[Follower]) -> float:
        """From the kill to the first response to any of them."""
        first = min(each.answered_at for each in followers if each.answered_at is not None)
        return first - self.killed_at


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Three nodes, with the group topic created and replicated."""
    settings = {
        "offsets.topic.num.partitions": "3",
        "offsets.topic.replication.factor": "3",
        "group.initial.rebalance.delay.ms": "500",
    }
    folder = tmp_path_factory.mktemp("nodes")
    with (
        running_cluster(folder, NODES, settings=settings) as cluster,
        ThreadPoolExecutor(MEMBERS) as pool,
    ):
        cluster.create_at(TOPIC, [[at % NODES] for at in range(PARTITIONS)])
        wait_until(lambda: coordinator_of(cluster, "any"), what="there are coordinators")
        cluster.wait_until_whole("__consumer_offsets")
        stage = Stage(cluster, pool)
        yield stage
        stage.close()


def results(futures: Sequence[Future[object]]) -> None:
    for future in futures:
        future.result(WAIT_S)


def share_a_generation(members: Sequence[ClassicMember]) -> bool:
    is_assigned = all(member.has_assignment for member in members)
    return is_assigned and len({member.generation for member in members}) == 1


def assert_known(members: Sequence[ClassicMember], ids: Sequence[str]) -> None:
    """The members have their ids, and no response said otherwise."""
    assert [member.id for member in members] == ids
    for member in members:
        assert ErrorCode.UNKNOWN_MEMBER_ID not in member.coordinator.told


@pytest.mark.parametrize("moment", ["JoinGroup", "SyncGroup"])
def test_classic_members_stay_members_when_their_coordinator_is_killed(
    moment: str, stage: Stage, report: Report
) -> None:
    group = f"classic-{moment}"
    members = [ClassicMember(stage, group) for _ in range(MEMBERS)]
    results(stage.all(*(partial(member.rejoin_and_settle, members) for member in members)))
    ids = [member.id for member in members]
    took: list[str] = []
    for victim in VICTIMS:
        *others, leader = sorted(members, key=lambda member: member.leads)
        # The leader starts a rebalance, which waits for the other two.
        if moment == "JoinGroup":
            waiting = stage.all(partial(leader.rejoin_and_settle, members))
            wait_until(lambda: stage.state_of(group) == "PreparingRebalance")
            node_id = stage.kill(victim, group)
            waiting += stage.all(*(partial(each.rejoin_and_settle, members) for each in others))
        else:
            waiting = stage.all(leader.join)
            wait_until(lambda: stage.state_of(group) == "PreparingRebalance")
            results(waiting + stage.all(*(member.join for member in others)))
            # The followers wait for the leader's assignment.
            waiting = stage.all(*(partial(each.follow_and_settle, members) for each in others))
            node_id = stage.kill(victim, group)
            waiting += stage.all(partial(leader.follow_and_settle, members))
        results(waiting)
        seconds = time.monotonic() - stage.killed_at
        took.append(
            f"{victim} {stage.outage_s(member.coordinator for member in members):.2f}"
            f" ({seconds:.2f})"
        )
        assert_known(members, ids)
        stage.heal(victim, node_id)
    report(
        f"seconds from the kill until a request is answered (all share again): {', '.join(took)}"
    )


def test_classic_members_keep_their_ids_when_the_coordinator_of_a_new_group_is_killed(
    stage: Stage, report: Report
) -> None:
    took: list[str] = []
    for victim in VICTIMS:
        group = f"new-{victim}"
        members = [ClassicMember(stage, group) for _ in range(MEMBERS)]
        joining = stage.all(*(partial(each.rejoin_and_settle, members) for each in members))
        # No record has these members yet: they wait for others to join.
        wait_until(lambda: all(member.id for member in members))  # noqa: B023
        ids = [member.id for member in members]
        node_id = stage.kill(victim, group)
        results(joining)
        seconds = time.monotonic() - stage.killed_at
        took.append(
            f"{victim} {stage.outage_s(member.coordinator for member in members):.2f}"
            f" ({seconds:.2f})"
        )
        assert_known(members, ids)
        stage.heal(victim, node_id)
    report(f"seconds from the kill until a request is answered (all share): {', '.join(took)}")


class ConsumerMember:
    """A member of a consumer group that follows the responses."""

    def __init__(self, stage: Stage, group: str, name: str) -> None:
        self.group = group
        self.name = name
        self.coordinator = stage.follower(group)
        self.epoch = 0
        self.owned: dict[Uuid, list[int]] = {}

    def send_heartbeat(self) -> None:
        """One full heartbeat."""
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.name,
            member_epoch=self.epoch,
            rebalance_timeout_ms=20_000,
            subscribed_topic_names=[TOPIC],
            topic_partitions=[
                TopicIdPartitions(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in self.owned.items()
            ],
        )
        answer = self.coordinator.ask(request, 1, ConsumerGroupHeartbeatResponse)
        assert answer.error_code == ErrorCode.NONE, answer.error_message
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = {
                topic.topic_id: topic.partitions for topic in answer.assignment.topic_partitions
            }

    @property
    def partitions(self) -> set[int]:
        return {index for indexes in self.owned.values() for index in indexes}


def share(members: Sequence[ConsumerMember]) -> bool:
    """One heartbeat of each; returns whether all partitions are assigned, in even shares."""
    for member in members:
        member.send_heartbeat()
    owned = [index for member in members for index in member.partitions]
    if len(owned) > len(set(owned)):
        pytest.fail(f"a partition belongs to two: {sorted(owned)}")  # no "not yet" to wait_until
    size = PARTITIONS // len(members)
    return len(owned) == PARTITIONS and all(len(member.partitions) >= size for member in members)


def test_members_of_the_consumer_protocol_stay_members_when_their_coordinator_is_killed(
    stage: Stage, report: Report
) -> None:
    group = "consumers"
    members = [ConsumerMember(stage, group, "member-0")]
    wait_until(lambda: share(members), timeout_s=WAIT_S, what="one has all")
    took: list[str] = []
    outages: dict[str, float] = {}
    for number, victim in enumerate(VICTIMS, 1):
        members.append(ConsumerMember(stage, group, f"member-{number}"))
        epochs = [member.epoch for member in members[:-1]]
        members[-1].send_heartbeat()
        # The member is in the group, and the others have not revoked anything yet.
        node_id = stage.kill(victim, group)
        members[0].send_heartbeat()
        outage_s = stage.outage_s([members[0].coordinator])
        wait_until(partial(share, members), timeout_s=WAIT_S, what="all have their share")
        took.append(f"{victim} {outage_s:.2f} ({time.monotonic() - stage.killed_at:.2f})")
        outages[victim] = outage_s
        assert all(member.epoch > epoch for member, epoch in zip(members[:-1], epochs, strict=True))
        assert [member.coordinator.told for member in members] == [[]] * len(members)
        stage.heal(victim, node_id)
    report(f"seconds from the kill until a heartbeat is answered (all share): {', '.join(took)}")
    assert outages["router-0"] < ROUTER_KILL_HEARTBEAT_S * SLACK
