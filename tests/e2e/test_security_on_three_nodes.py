"""Security on three nodes: what one of them has acknowledged holds on all of them, and on one that
comes back from its first answer on.

The partition's leader, the group's coordinator and the node that an administrator or a client asks
are three different ones.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from typing import Final

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaError, KafkaException

from odradek.cluster.metadata.acls import AclOperation, PermissionType, ResourceType
from odradek.node.cli.main import cli
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.acls import (
    AclCreation,
    AclFilter,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from odradek.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from odradek.protocol.messages.produce import ProduceResponse
from odradek.protocol.messages.tokens import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from tests.conformance.dialogue import batch_of, produce_request
from tests.e2e.cluster import Cluster, cluster
from tests.e2e.conftest import Report
from tests.support.ports import free_port
from tests.support.quota_dialogue import alter
from tests.support.token_dialogue import CreatedToken, scram_login
from tests.support.waiting import wait_until
from tests.support.wire import ClosedByPeer, WireClient

STANDARD: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
TOPIC: Final = "orders"
LEADER, COORDINATOR, THIRD = 1, 0, 2
"""The nodes of the topic's leader and of the group's coordinator, and the other one."""
IN_FORCE_S: Final = 5.0
"""Metadata reach the other nodes within milliseconds; this is for a busy machine."""
CHANGE, PRODUCE = 3, 9


def password(user: str) -> str:
    return f"{user}'s secret"


class SecuredCluster:
    """Three nodes with a listener for SCRAM each; on the other one everybody may do everything."""

    def __init__(self, nodes: Cluster) -> None:
        self.nodes = nodes
        self.addresses: dict[int, str] = {}
        for node_id, node in nodes.nodes.items():
            self.addresses[node_id] = f"127.0.0.1:{free_port()}"
            own = node.bootstrap_servers
            node.settings |= {
                "listeners": f"PLAINTEXT://{own},CLIENTS://{self.addresses[node_id]}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
                "sasl.enabled.mechanisms": "SCRAM-SHA-256",
                "authorizer.class.name": STANDARD,
                "super.users": "User:ANONYMOUS",
                "quota.window.num": "2",
                "log.level": "INFO",
            }
            node.environment["ODRADEK_DELEGATION_TOKEN_SECRET_KEY"] = "a key of all nodes"

    def administrator(self, node_id: int) -> WireClient:
        return WireClient(self.nodes[node_id].bootstrap_servers)

    def odradek(self, node_id: int, *arguments: str, stdin: str = "") -> None:
        """Run a command of an administrator's at that node."""
        where = ("-b", self.nodes[node_id].bootstrap_servers)
        ran = CliRunner().invoke(cli, [*where, *arguments], input=stdin)
        assert ran.exit_code == 0, ran.output

    def add_user(self, node_id: int, name: str, secret: str = "") -> None:
        self.odradek(
            node_id,
            *("user", "add", name, "--mechanism", "SCRAM-SHA-256", "--password-file", "-"),
            stdin=secret or password(name),
        )

    def remove_user(self, node_id: int, name: str) -> None:
        self.odradek(node_id, "user", "remove", name)

    def is_let_in(self, node_id: int, user: str, secret: str = "") -> bool:
        """Whether the node lets that user in, whose password is its usual one or another."""
        with WireClient(self.addresses[node_id]) as wire:
            answer = scram_login(wire, user, secret or password(user), extensions="")
            return not answer.error_code

    def takes_token(self, node_id: int, token: CreatedToken) -> bool:
        with WireClient(self.addresses[node_id]) as wire:
            return not scram_login(wire, token.token_id, token.password).error_code

    def login(self, node_id: int, user: str) -> WireClient:
        """A connection of the user's, once the node knows it."""

        def attempt() -> WireClient | None:
            wire = WireClient(self.addresses[node_id])
            if not scram_login(wire, user, password(user), extensions="").error_code:
                return wire
            wire.close()
            return None

        wire = wait_until(attempt, timeout_s=IN_FORCE_S, what=f"node {node_id} knows {user}")
        assert wire is not None
        return wire

    def permit(
        self,
        node_id: int,
        permission: PermissionType,
        user: str,
        operation: AclOperation,
        resource: ResourceType = ResourceType.TOPIC,
        name: str = TOPIC,
    ) -> None:
        """Allow or deny the user that; returns when the node has acknowledged it."""
        creation = AclCreation(
            resource_type=resource,
            resource_name=name,
            principal=f"User:{user}",
            host="*",
            operation=operation,
            permission_type=permission,
        )
        with self.administrator(node_id) as wire:
            request = CreateAclsRequest(creations=[creation])
            answer = wire.ask(request, CHANGE, CreateAclsResponse)
        assert [result.error_code for result in answer.results] == [0]

    def remove_denials(self, node_id: int, user: str) -> None:
        every = AclFilter(
            resource_type_filter=1,
            resource_name_filter=None,
            pattern_type_filter=1,
            principal_filter=f"User:{user}",
            host_filter=None,
            operation=1,
            permission_type=PermissionType.DENY,
        )
        with self.administrator(node_id) as wire:
            answer = wire.ask(DeleteAclsRequest(filters=[every]), CHANGE, DeleteAclsResponse)
        assert answer.filter_results[0].matching_acls


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    with cluster(tmp_path_factory.mktemp("secured")) as nodes:
        secured = SecuredCluster(nodes)
        nodes.start()
        nodes.create_at(TOPIC, [[LEADER, THIRD, COORDINATOR]])
        for user in ("ann", "ben"):
            secured.add_user(THIRD, user)
            secured.permit(THIRD, PermissionType.ALLOW, user, AclOperation.ALL)
        yield secured


def produce(wire: WireClient, size: int = 10) -> ProduceResponse:
    return wire.ask(produce_request(TOPIC, {0: batch_of(b"x" * size)}), PRODUCE, ProduceResponse)


def error_of(wire: WireClient) -> int:
    """The error of one record's Produce."""
    return produce(wire).responses[0].partition_responses[0].error_code


def in_force_after_ms(holds: Callable[[], bool], what: str) -> float:
    """How long it took until that was so."""
    began = time.monotonic()
    wait_until(holds, timeout_s=IN_FORCE_S, what=what)
    return 1000 * (time.monotonic() - began)


def test_a_denial_holds_on_every_node(secured: SecuredCluster, report: Report) -> None:
    """On connections that exist."""
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with ExitStack() as stack:
        ann = {
            node_id: stack.enter_context(secured.login(node_id, "ann"))
            for node_id in secured.addresses
        }
        wait_until(lambda: error_of(ann[LEADER]) == 0, timeout_s=IN_FORCE_S)
        secured.permit(THIRD, PermissionType.DENY, "ann", AclOperation.WRITE)
        assert error_of(ann[THIRD]) == denied
        for node_id in (LEADER, COORDINATOR):
            taken_ms = in_force_after_ms(
                lambda: error_of(ann[node_id]) == denied,  # noqa: B023  # called in the loop
                f"node {node_id} denies",
            )
            report(f"a denial is in force on another node after {taken_ms:.0f} ms")
        # Whoever was not named writes on.
        with secured.login(LEADER, "ben") as ben:
            assert error_of(ben) == 0
        secured.remove_denials(COORDINATOR, "ann")
        wait_until(lambda: error_of(ann[LEADER]) == 0, timeout_s=IN_FORCE_S)


def test_a_group_is_denied_where_it_is_coordinated(secured: SecuredCluster) -> None:
    """The client began at another node than the one that the administrator asked."""
    group = group_of(secured, COORDINATOR)
    secured.permit(THIRD, PermissionType.ALLOW, "ann", AclOperation.READ, ResourceType.GROUP, group)
    with secured.login(LEADER, "ann") as ann:
        wait_until(lambda: error_of(ann) == 0, timeout_s=IN_FORCE_S)
    consumer = Consumer(
        {
            "bootstrap.servers": secured.addresses[THIRD],
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "ann",
            "sasl.password": password("ann"),
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    with closing(consumer):
        consumer.subscribe([TOPIC])
        first = wait_until(lambda: consumer.poll(0.2))
        assert first is not None
        assert first.error() is None
        consumer.commit(message=first, asynchronous=False)
        secured.permit(
            LEADER, PermissionType.DENY, "ann", AclOperation.READ, ResourceType.GROUP, group
        )

        def refusal() -> int:
            """0 while the coordinator does not know."""
            try:
                consumer.commit(message=first, asynchronous=False)
            except KafkaException as refused:
                return int(refused.args[0].code())
            return 0

        found = wait_until(refusal, timeout_s=IN_FORCE_S)
        assert found == KafkaError.GROUP_AUTHORIZATION_FAILED
    secured.remove_denials(COORDINATOR, "ann")


def group_of(secured: SecuredCluster, node_id: int) -> str:
    """A group that this node coordinates."""
    names = [f"group-{number}" for number in range(64)]
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=names)

    def found() -> str | None:
        with secured.administrator(THIRD) as wire:
            answer = wire.ask(request, 4, FindCoordinatorResponse)
        of_node = (each.key for each in answer.coordinators if each.node_id == node_id)
        return next(of_node, None)

    name = wait_until(found, what=f"node {node_id} coordinates a group")
    assert name is not None
    return name


def test_a_quota_is_kept_by_the_leader(secured: SecuredCluster) -> None:
    with secured.administrator(THIRD) as wire, secured.login(LEADER, "ben") as ben:
        assert produce(ben, 15_000).throttle_time_ms == 0
        answer = alter(wire, [({"user": "ben"}, {"producer_byte_rate": 10_000.0})])
        assert [entry.error_code for entry in answer.entries] == [0]
        wait_until(lambda: produce(ben, 1_000).throttle_time_ms > 0, timeout_s=IN_FORCE_S)
        with secured.login(LEADER, "ann") as ann:
            assert produce(ann, 15_000).throttle_time_ms == 0
        alter(wire, [({"user": "ben"}, {"producer_byte_rate": None})])


def test_credentials_of_a_user_are_everywhere_the_same(secured: SecuredCluster) -> None:
    secured.add_user(LEADER, "eve")
    assert secured.is_let_in(LEADER, "eve")
    others = (COORDINATOR, THIRD)
    for node_id in others:
        in_force_after_ms(partial(secured.is_let_in, node_id, "eve"), "eve is known")
    secured.add_user(THIRD, "eve", "another secret")
    assert not secured.is_let_in(THIRD, "eve")
    for node_id in (LEADER, COORDINATOR):
        in_force_after_ms(partial(secured.is_let_in, node_id, "eve", "another secret"), "changed")
        assert not secured.is_let_in(node_id, "eve")
    secured.remove_user(COORDINATOR, "eve")
    assert not secured.is_let_in(COORDINATOR, "eve", "another secret")
    for node_id in (LEADER, THIRD):
        in_force_after_ms(
            lambda: not secured.is_let_in(node_id, "eve", "another secret"),  # noqa: B023  # called in the loop
            "eve is removed",
        )


def created_token(secured: SecuredCluster, node_id: int, user: str) -> CreatedToken:
    with secured.login(node_id, user) as wire:
        request = CreateDelegationTokenRequest(max_lifetime_ms=-1)
        created = wire.ask(request, 3, CreateDelegationTokenResponse)
    assert not created.error_code
    return CreatedToken(created.token_id, bytes(created.hmac))


def test_a_token_of_one_node_is_good_for_all(secured: SecuredCluster) -> None:
    token = created_token(secured, COORDINATOR, "ann")
    for node_id in (LEADER, THIRD):
        in_force_after_ms(partial(secured.takes_token, node_id, token), "the token is known")
    with WireClient(secured.addresses[LEADER]) as wire:
        assert not scram_login(wire, token.token_id, token.password).error_code
        assert error_of(wire) == 0
    with secured.login(LEADER, "ann") as ann:
        renew = RenewDelegationTokenRequest(hmac=token.hmac, renew_period_ms=3_600_000)
        renewed = ann.ask(renew, 2, RenewDelegationTokenResponse)
        assert not renewed.error_code
    with secured.login(THIRD, "ann") as ann:

        def expiry_ms() -> int | None:
            request = DescribeDelegationTokenRequest(owners=None)
            answer = ann.ask(request, 3, DescribeDelegationTokenResponse)
            ends = {each.token_id: each.expiry_timestamp for each in answer.tokens}
            return ends.get(token.token_id)

        wait_until(lambda: expiry_ms() == renewed.expiry_timestamp_ms, timeout_s=IN_FORCE_S)
        expire = ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=-1)
        assert not ann.ask(expire, 2, ExpireDelegationTokenResponse).error_code
    assert not secured.takes_token(THIRD, token)
    for node_id in (LEADER, COORDINATOR):
        in_force_after_ms(
            lambda: not secured.takes_token(node_id, token),  # noqa: B023  # called in the loop
            "the token is expired",
        )


def test_a_node_that_comes_back_knows_what_it_has_missed(secured: SecuredCluster) -> None:
    """It lets nobody in, and allows nothing, by what it knew before."""
    nodes = secured.nodes
    secured.add_user(LEADER, "gone")
    assert secured.is_let_in(LEADER, "gone")
    old_token = created_token(secured, LEADER, "ann")
    nodes[LEADER].stop()
    wait_until(lambda: nodes.leader_of(TOPIC) != LEADER, what="another node leads")
    secured.remove_user(THIRD, "gone")
    secured.add_user(COORDINATOR, "new")
    secured.permit(COORDINATOR, PermissionType.DENY, "ben", AclOperation.WRITE)
    with secured.login(THIRD, "ann") as ann:
        expire = ExpireDelegationTokenRequest(hmac=old_token.hmac, expiry_time_period_ms=-1)
        wait_until(
            lambda: not ann.ask(expire, 2, ExpireDelegationTokenResponse).error_code,
            timeout_s=IN_FORCE_S,
        )
    new_token = created_token(secured, THIRD, "ann")
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(nodes[LEADER].start)

        def is_started() -> bool:
            try:
                is_let_in = secured.is_let_in(LEADER, "gone")
                is_let_in |= secured.takes_token(LEADER, old_token)
            except (OSError, ClosedByPeer):
                return False  # it does not listen yet
            if is_let_in:
                pytest.fail("a credential that is removed was good for the node that came back")
            return starting.done()

        wait_until(is_started)
        starting.result()
    assert secured.is_let_in(LEADER, "new")
    assert secured.takes_token(LEADER, new_token)
    with secured.login(LEADER, "ben") as ben:
        assert error_of(ben) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    secured.remove_denials(LEADER, "ben")
