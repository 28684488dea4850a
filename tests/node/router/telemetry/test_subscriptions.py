"""Which metrics a client pushes."""

import pytest

from odradek.node.router.telemetry.subscriptions import (
    ClientAttributes,
    ClientMetricsSubscriptions,
    Subscription,
    check_match,
)
from odradek.protocol.errors import ApiError, ErrorCode
from tests.support.log_lines import log_text

ID = bytes(range(16))
JAVA = ClientAttributes("AAE", "orders-1", "apache-kafka-java", "4.3.1", "10.0.0.7", "50123")


def subscriptions(**by_name: dict[str, str]) -> ClientMetricsSubscriptions:
    made = ClientMetricsSubscriptions()
    made.follow(by_name)
    return made


def subscription(client: ClientAttributes = JAVA, **by_name: dict[str, str]) -> Subscription:
    return subscriptions(**by_name).subscription_of(client, ID)


def test_a_client_without_subscription_has_no_metrics_and_the_default_interval() -> None:
    assert subscription()[:2] == ((), 300_000)
    of_others = {"metrics": "*", "interval.ms": "100", "match": "client_id=nobody"}
    assert subscription(a=of_others) == subscription()


def test_subscriptions_that_match_are_taken_together() -> None:
    found = subscription(
        a={"metrics": "b.,a.", "interval.ms": "5000"},
        b={"metrics": "a.,c.", "interval.ms": "3000", "match": "client_id=orders.*"},
        c={"metrics": "d.", "interval.ms": "1000", "match": "client_id=order"},
    )
    assert found[:2] == (("a.", "b.", "c."), 3_000)


def test_all_metrics_are_one_asterisk() -> None:
    assert subscription(a={"metrics": "a."}, b={"metrics": "b.,*"}).metrics == ("*",)


def test_an_interval_longer_than_the_default_is_cut_as_in_kafka() -> None:
    assert subscription(a={"metrics": "*", "interval.ms": "3600000"}).interval_ms == 300_000


@pytest.mark.parametrize(
    ("match", "is_match"),
    [
        ("client_software_name=apache-kafka-java", True),
        ("client_software_name=apache", False),
        ("client_software_name=.*java,client_software_version=4[.]3.*", True),
        ("client_software_name=.*java,client_software_version=3.*", False),
        ("client_instance_id=AAE", True),
        ("client_source_address=10[.].*", True),
        ("client_source_port=501..", True),
        ("client_id=", True),  # not a pattern: nothing to match
    ],
)
def test_all_patterns_must_match_the_whole_attribute(match: str, is_match: bool) -> None:
    found = subscription(a={"metrics": "m", "match": match})
    assert found.metrics == (("m",) if is_match else ())


def test_an_attribute_that_is_not_known_does_not_match() -> None:
    nameless = JAVA._replace(client_id=None)
    assert subscription(nameless, a={"metrics": "m", "match": "client_id=.*"}).metrics == ()


def test_the_id_depends_on_metrics_interval_and_client() -> None:
    one = {"metrics": "a.,b.", "interval.ms": "1000"}
    ids = {
        subscription(x=one).subscription_id,
        subscription(y={"metrics": "b.,a.", "interval.ms": "1000"}).subscription_id,
    }
    assert len(ids) == 1, "the same on all brokers, whatever the order"
    ids.add(subscription(x={**one, "interval.ms": "2000"}).subscription_id)
    ids.add(subscription(x={**one, "metrics": "a."}).subscription_id)
    ids.add(subscriptions(x=one).subscription_of(JAVA, bytes(16)).subscription_id)
    assert len(ids) == 4
    assert all(-(2**31) <= each < 2**31 for each in ids)


def test_the_version_grows_when_the_configs_change() -> None:
    made = subscriptions()
    assert made.version == 0
    configs = {"a": {"metrics": "m"}}
    made.follow(configs)
    made.follow(configs)
    made.follow({"a": {"metrics": "m"}})
    assert made.version == 1
    made.follow({})
    assert made.version == 2
    assert made.subscription_of(JAVA, ID).metrics == ()


def test_a_pattern_that_re2_does_not_have_is_refused_with_the_reason() -> None:
    check_match("client_id=a.*, client_software_name=(java|rdkafka)")
    check_match("not a list of patterns")
    with pytest.raises(ApiError) as refused:
        check_match("client_software_name=java,client_id=(?!a)b")
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    assert refused.value.message.startswith("Illegal client matching pattern: client_id=(?!a)b: ")


def test_a_pattern_that_is_not_valid_any_more_matches_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert subscription(old={"metrics": "m", "match": "client_id=["}).metrics == ()
    assert "subscription matches no client subscription=old" in log_text(caplog)
