"""A router with an authorizer: the requests of a client who has some rights, or none."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from odradek.cluster.controller.commands import CreateAcls, DeleteAcls
from odradek.cluster.metadata.authorizer_settings import STANDARD_AUTHORIZER
from odradek.cluster.metadata.features import GROUP_VERSION, SHARE_VERSION, STREAMS_VERSION
from odradek.cluster.metadata.records import FeatureLevelChanged
from odradek.node.router.authorizer import Authorizer
from odradek.node.router.dispatch import HANDLERS
from odradek.node.router.handlers.fetch import handle_fetch
from odradek.node.router.handlers.group_offsets import handle_offset_commit
from odradek.node.router.handlers.groups import handle_find_coordinator
from odradek.node.router.handlers.rewinds import handle_alter_snapshot
from odradek.node.router.handlers.tokens import handle_create_delegation_token
from odradek.node.router.handlers.transactions import handle_init_producer_id
from odradek.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.protocol.messages.groups import FindCoordinatorRequest
from odradek.protocol.messages.rewinds import AlterSnapshotRequest
from odradek.protocol.messages.tokens import CreateDelegationTokenRequest
from odradek.protocol.messages.transactions import InitProducerIdRequest
from tests.support.authorization_cases import (
    ADMIN,
    GROUP,
    PRINCIPAL,
    TOPIC,
    TRANSACTIONAL_ID,
    Made,
    Right,
    outcome,
)
from tests.support.group_harness import GroupHarness
from tests.support.wire import api_of

SNAPSHOT: Final = "s"
"""The name of the group's snapshot."""


class AuthorizedHarness(GroupHarness):
    """See the module's docstring."""

    def prepare(self) -> None:
        """Make what requests name: the topic with a reader, the group with a commit and a snapshot,
        the transaction, the token."""
        self.services.authorizer = Authorizer()
        self.services.is_identified = lambda _connection_id: True
        self.principal = ADMIN
        topic_id = self.have_topic(TOPIC, 1)
        for feature in (GROUP_VERSION, SHARE_VERSION, STREAMS_VERSION):
            self.controller.write(FeatureLevelChanged(feature, 1))
        self.follow()
        for kind, key in ((0, GROUP), (1, TRANSACTIONAL_ID), (2, f"{GROUP}:{'A' * 22}:0")):
            find = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
            [found] = self.call(handle_find_coordinator, find).coordinators
            assert not found.error_code
        partition = OffsetCommitRequestPartition(
            partition_index=0, committed_offset=0, committed_metadata=None
        )
        commit = OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=-1,
            topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])],
        )
        [topic] = self.call(handle_offset_commit, commit, 9).topics
        assert not topic.partitions[0].error_code
        begin = InitProducerIdRequest(
            transactional_id=TRANSACTIONAL_ID, transaction_timeout_ms=60_000
        )
        assert not self.call(handle_init_producer_id, begin, 4).error_code
        fetched = FetchTopic(topic=TOPIC, partitions=[FetchPartition(partition=0)])
        self.call(handle_fetch, FetchRequest(topics=[fetched], max_bytes=1000), 12)
        snapshot = AlterSnapshotRequest(group_id=GROUP, name=SNAPSHOT)
        assert not self.call(handle_alter_snapshot, snapshot).error_code
        create = CreateDelegationTokenRequest(max_lifetime_ms=-1)
        token = self.call(handle_create_delegation_token, create, 3)
        assert not token.error_code
        self.made = Made(topic_id, bytes(token.hmac))
        self.principal = PRINCIPAL

    def give(self, rights: Iterable[Right]) -> None:
        """The client has these rights and no others."""
        self.controller.do(DeleteAcls(tuple(self.image.acls)))
        bindings = tuple(binding for each in rights for binding in each.bindings())
        self.controller.do(CreateAcls(bindings))
        self.follow()

    def ask(self, request: object, version: int | None = None) -> str:
        """The outcome of a request in this version, or the newest one."""
        response = self.call(HANDLERS[api_of(request).key], request, version)
        return outcome(response, self.made.topic_id)


@contextmanager
def authorized_harness(folder: Path) -> Iterator[AuthorizedHarness]:
    """A harness that is prepared."""
    static = {
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": ADMIN,
        "delegation.token.secret.key": "a key for the cases",
    }
    with AuthorizedHarness(folder, static=static) as harness:
        harness.prepare()
        yield harness
