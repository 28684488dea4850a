"""Every request of a client with one right, or with none, is answered as Apache Kafka answers it.

The cases are in tests/support/authorization_cases.py, Kafka's answers beside them.
"""

from collections.abc import Iterator

import pytest

from odradek.node.router.dispatch import HANDLERS
from odradek.protocol.apis import PRIVATE_KEY_MIN, ApiKey
from tests.support.authorization_cases import CASES, Case, recorded_answers
from tests.support.authorization_harness import AuthorizedHarness, authorized_harness

RECORDED = recorded_answers()
NEEDS_NOTHING = {
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
    ApiKey.PUSH_TELEMETRY,
}
# Kafka 4.3.1 does not advertise it.
NOT_IN_KAFKA = {ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE}
SERVED = [case for case in CASES if case.name in RECORDED and case.key in HANDLERS]


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuthorizedHarness]:
    with authorized_harness(tmp_path_factory.mktemp("authorization")) as harness:
        yield harness


@pytest.mark.parametrize("case", SERVED, ids=lambda case: case.name)
def test_a_request_is_answered_as_kafka_answers_it(harness: AuthorizedHarness, case: Case) -> None:
    recorded = RECORDED[case.name]
    differences = {}
    for rights in case.rights():
        harness.give((*case.base, *rights))
        answer = case.compared(harness.ask(case.request(harness.made), recorded.version))
        expected = case.compared(recorded.expected(rights))
        if answer != expected:
            differences[" ".join(map(str, rights)) or "nothing"] = (answer, expected)
    assert not differences


def test_every_api_of_kafkas_that_is_served_has_a_case() -> None:
    asked = {case.key for case in SERVED}
    served = {key for key in HANDLERS if key < PRIVATE_KEY_MIN}
    assert served - asked - NEEDS_NOTHING == NOT_IN_KAFKA
