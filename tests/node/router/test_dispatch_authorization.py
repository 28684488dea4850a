"""Every request of a client with one right, or with none, is answered as Apache Kafka answers it.

The cases are in tests/support/authorization_cases.py, Kafka's answers beside them.
"""

from collections.abc import Iterator

import pytest

from odradek.cluster.controller.commands import CreateAcls, DeleteAcls
from odradek.cluster.metadata.authorizer_settings import STANDARD_AUTHORIZER
from odradek.cluster.metadata.features import GROUP_VERSION, SHARE_VERSION, STREAMS_VERSION
from odradek.cluster.metadata.records import FeatureLevelChanged
from odradek.node.router.authorizer import Authorizer
from odradek.node.router.dispatch import HANDLERS
from odradek.node.router.handlers.group_offsets import handle_offset_commit
from odradek.node.router.handlers.groups import handle_find_coordinator
from odradek.node.router.handlers.transactions import handle_init_producer_id
from odradek.protocol.apis import PRIVATE_KEY_MIN, ApiKey
from odradek.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from odradek.protocol.messages.groups import FindCoordinatorRequest
from odradek.protocol.messages.transactions import InitProducerIdRequest
from tests.support.authorization_cases import (
    ADMIN,
    CASES,
    GROUP,
    PRINCIPAL,
    TOPIC,
    TRANSACTIONAL_ID,
    Case,
    Right,
    outcome,
    recorded_answers,
)
from tests.support.group_harness import GroupHarness

RECORDED = recorded_answers()
NEEDS_NOTHING = {
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
    ApiKey.PUSH_TELEMETRY,
}
# What they need is a dialogue of its own: tests/support/token_dialogue.py.
OF_TOKENS = {
    ApiKey.CREATE_DELEGATION_TOKEN,
    ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
}
# Kafka 4.3.1 does not advertise it.
NOT_IN_KAFKA = {ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE}
SERVED = [case for case in CASES if case.name in RECORDED and case.key in HANDLERS]


class AuthorizedHarness(GroupHarness):
    """A router with an authorizer, and what the cases name."""

    def prepare(self) -> None:
        self.services.authorizer = Authorizer()
        self.principal = ADMIN
        self.topic_id = self.have_topic(TOPIC, 1)
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
        self.principal = PRINCIPAL

    def give(self, rights: tuple[Right, ...]) -> None:
        self.controller.do(DeleteAcls(tuple(self.image.acls)))
        bindings = tuple(binding for each in rights for binding in each.bindings())
        self.controller.do(CreateAcls(bindings))
        self.follow()

    def ask(self, case: Case, version: int) -> str:
        handler = HANDLERS[case.key]
        response = self.call(handler, case.request(self.topic_id), version)
        return outcome(response, self.topic_id)


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuthorizedHarness]:
    static = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": ADMIN}
    folder = tmp_path_factory.mktemp("authorization")
    with AuthorizedHarness(folder, static=static) as harness:
        harness.prepare()
        yield harness


@pytest.mark.parametrize("case", SERVED, ids=lambda case: case.name)
def test_a_request_is_answered_as_kafka_answers_it(harness: AuthorizedHarness, case: Case) -> None:
    recorded = RECORDED[case.name]
    differences = {}
    for rights in case.rights():
        harness.give((*case.base, *rights))
        answer = case.compared(harness.ask(case, recorded.version))
        expected = case.compared(recorded.expected(rights))
        if answer != expected:
            differences[" ".join(map(str, rights)) or "nothing"] = (answer, expected)
    assert not differences


def test_every_api_of_kafkas_that_is_served_has_a_case() -> None:
    asked = {case.key for case in SERVED}
    served = {key for key in HANDLERS if key < PRIVATE_KEY_MIN}
    assert served - asked - NEEDS_NOTHING - OF_TOKENS == NOT_IN_KAFKA
