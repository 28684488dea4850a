"""Who may ask for a telemetry subscription and push metrics when.

What the dialogue expects is what Kafka 4.3.1 answered to the same requests, but for two faults of
its: after UNKNOWN_SUBSCRIPTION_ID it throttles the request that KIP-714 wants at once, and a push
that it refuses after the terminating one makes it accept the next.
"""

import pytest

from odradek.node.router.telemetry import instances as module
from odradek.node.router.telemetry.instances import (
    EXPIRY_MS_MIN,
    ClientInstance,
    ClientInstances,
)
from odradek.node.router.telemetry.subscriptions import (
    ClientAttributes,
    ClientMetricsSubscriptions,
)
from odradek.protocol.errors import ApiError, ErrorCode

INTERVAL_MS = 1_000
A, B, C = (bytes(15) + bytes([each]) for each in (10, 11, 12))
CLIENT = ClientAttributes("", "c", "golden", "1.0", "127.0.0.1", "1")
HERE, THERE = 1, 2
CONFIGS = {"all": {"metrics": "*", "interval.ms": str(INTERVAL_MS)}}


class Dialogue:
    """Requests of client instances at given times; the answers are error codes."""

    def __init__(self) -> None:
        self.subscriptions = ClientMetricsSubscriptions()
        self.subscriptions.follow(CONFIGS)
        self.instances = ClientInstances(self.subscriptions)
        self.now_ms = 0

    def use(self, instance_id: bytes = A, connection: int = HERE) -> ClientInstance:
        return self.instances.use(instance_id, CLIENT, connection, self.now_ms)

    def get(self, instance_id: bytes = A, connection: int = HERE) -> ErrorCode:
        try:
            self.use(instance_id, connection).begin_get(self.now_ms)
        except ApiError as error:
            return error.code
        return ErrorCode.NONE

    def push(
        self,
        instance_id: bytes = A,
        connection: int = HERE,
        *,
        wrong: bool = False,
        last: bool = False,
    ) -> ErrorCode:
        instance = self.use(instance_id, connection)
        subscription_id = instance.subscription.subscription_id + wrong
        try:
            instance.begin_push(subscription_id, is_terminating=last, now_ms=self.now_ms)
        except ApiError as error:
            return error.code
        return ErrorCode.NONE


@pytest.fixture
def dialogue() -> Dialogue:
    return Dialogue()


def test_a_client_asks_once_in_an_interval(dialogue: Dialogue) -> None:
    assert dialogue.get() is ErrorCode.NONE
    assert dialogue.get() is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    dialogue.now_ms = INTERVAL_MS - 1
    assert dialogue.get() is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    dialogue.now_ms = INTERVAL_MS
    assert dialogue.get() is ErrorCode.NONE


def test_the_first_push_after_asking_may_come_at_once(dialogue: Dialogue) -> None:
    dialogue.get()
    dialogue.now_ms = 1
    assert dialogue.push() is ErrorCode.NONE
    dialogue.now_ms = INTERVAL_MS
    assert dialogue.push() is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    dialogue.now_ms = INTERVAL_MS + 1
    assert dialogue.push() is ErrorCode.NONE
    assert dialogue.get() is ErrorCode.THROTTLING_QUOTA_EXCEEDED


def test_another_subscription_is_unknown_and_asked_for_at_once(dialogue: Dialogue) -> None:
    dialogue.get()
    dialogue.now_ms = 1
    assert dialogue.push(wrong=True) is ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    assert dialogue.get() is ErrorCode.NONE
    assert dialogue.get() is ErrorCode.THROTTLING_QUOTA_EXCEEDED


def test_a_codec_that_is_not_supported_lets_the_client_ask_at_once(dialogue: Dialogue) -> None:
    dialogue.get()
    dialogue.use().failed(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
    assert dialogue.get() is ErrorCode.NONE
    dialogue.use().failed(ErrorCode.TELEMETRY_TOO_LARGE)
    assert dialogue.get() is ErrorCode.THROTTLING_QUOTA_EXCEEDED


def test_the_terminating_push_is_accepted_early_and_once(dialogue: Dialogue) -> None:
    dialogue.get()
    dialogue.now_ms = 1
    assert dialogue.push() is ErrorCode.NONE
    assert dialogue.push(last=True) is ErrorCode.NONE
    dialogue.now_ms = 2 * INTERVAL_MS
    assert dialogue.push() is ErrorCode.INVALID_REQUEST
    assert dialogue.push(last=True) is ErrorCode.INVALID_REQUEST
    assert dialogue.get() is ErrorCode.NONE


def test_a_terminating_push_that_is_refused_is_the_last_as_well(dialogue: Dialogue) -> None:
    assert dialogue.push(last=True, wrong=True) is ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    assert dialogue.push(last=True) is ErrorCode.INVALID_REQUEST


def test_a_client_that_comes_from_another_broker_goes_on_pushing(dialogue: Dialogue) -> None:
    assert dialogue.push() is ErrorCode.NONE


def test_changed_subscriptions_are_told_at_once(dialogue: Dialogue) -> None:
    dialogue.get()
    before = dialogue.use().subscription
    dialogue.subscriptions.follow({"all": {"metrics": "a", "interval.ms": "200"}})
    assert dialogue.get() is ErrorCode.NONE
    after = dialogue.use().subscription
    assert after[:2] == (("a",), 200)
    assert after.subscription_id != before.subscription_id
    assert len(dialogue.instances) == 1


def test_instances_are_forgotten_with_their_connection(dialogue: Dialogue) -> None:
    dialogue.get(A)
    dialogue.get(B)
    dialogue.get(C, THERE)
    dialogue.instances.remove_connection(HERE)
    assert [each.instance_id for each in dialogue.instances] == [C]
    dialogue.instances.remove_connection(HERE)
    assert dialogue.get(A) is ErrorCode.NONE


def test_an_instance_that_has_moved_outlives_its_old_connection(dialogue: Dialogue) -> None:
    dialogue.get(A, HERE)
    dialogue.get(A, THERE)
    dialogue.instances.remove_connection(HERE)
    assert dialogue.get(A, THERE) is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    dialogue.instances.remove_connection(THERE)
    assert len(dialogue.instances) == 0


def test_instances_expire(dialogue: Dialogue) -> None:
    dialogue.get(A)
    dialogue.now_ms = EXPIRY_MS_MIN - 1
    dialogue.get(B)
    assert dialogue.instances.get(A) is not None
    dialogue.now_ms += module._EXPIRY_CHECK_MS
    dialogue.get(B)
    assert dialogue.instances.get(A) is None
    dialogue.instances.remove_connection(HERE)
    assert len(dialogue.instances) == 0


def test_the_one_that_was_used_least_recently_makes_room(
    dialogue: Dialogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "INSTANCES_MAX", 2)
    for instance in (A, B, A, C):
        dialogue.get(instance)
    assert [each.instance_id for each in dialogue.instances] == [A, C]
    dialogue.instances.remove_connection(HERE)
    assert len(dialogue.instances) == 0
