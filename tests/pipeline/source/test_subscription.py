"""Which partitions of which topics a query reads."""

import pytest

from odradek.pipeline.errors import PipelineError
from odradek.pipeline.kafka_types import PartitionName
from odradek.pipeline.source.subscription import subscription_of
from odradek.pipeline.wire.cluster import TopicView

ORDERS = TopicView("orders", "id-1", False, (0, 1, 2))
OLD_ORDERS = TopicView("orders.old", "id-2", False, (0,))
OFFSETS = TopicView("__consumer_offsets", "id-3", True, (0, 1))
ALL = (OFFSETS, OLD_ORDERS, ORDERS)


def refusal_of(**options: str) -> str:
    with pytest.raises(PipelineError) as refused:
        subscription_of(options)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_topics_are_named_with_commas_and_spaces() -> None:
    subscription = subscription_of({"subscribe": " orders, orders.old ,"})
    assert subscription.names == ("orders", "orders.old")
    assert subscription.choose(ALL) == {"orders": (0, 1, 2), "orders.old": (0,)}
    assert str(subscription) == "subscribe=orders,orders.old"


def test_a_pattern_matches_whole_names_and_no_internal_topic() -> None:
    assert subscription_of({"subscribepattern": "ord.*"}).choose(ALL).keys() == {
        "orders",
        "orders.old",
    }
    assert subscription_of({"subscribepattern": "orders"}).choose(ALL).keys() == {"orders"}
    everything = subscription_of({"subscribepattern": ".*"})
    assert "__consumer_offsets" not in everything.choose(ALL)
    assert everything.names is None


def test_an_internal_topic_that_is_named_is_read() -> None:
    named = subscription_of({"subscribe": "__consumer_offsets"})
    assert named.choose([OFFSETS]) == {"__consumer_offsets": (0, 1)}


def test_single_partitions_are_assigned() -> None:
    subscription = subscription_of({"assign": '{"orders":[2,0],"orders.old":[0]}'})
    assert subscription.partitions == {
        PartitionName("orders", 0),
        PartitionName("orders", 2),
        PartitionName("orders.old", 0),
    }
    assert subscription.choose(ALL) == {"orders": (0, 2), "orders.old": (0,)}
    assert subscription.has_topic("orders")
    assert not subscription.has_topic("__consumer_offsets")
    assert str(subscription) == "assign=orders-0,orders-2,orders.old-0"


def test_exactly_one_option_says_what_to_read() -> None:
    assert "none of them is set" in refusal_of()
    assert "both subscribe and assign" in refusal_of(subscribe="a", assign='{"a":[0]}')


@pytest.mark.parametrize("value", ["orders", '{"orders":0}', '{"orders":["0"]}', "[1]", "{}"])
def test_an_assignment_of_another_form_is_refused(value: str) -> None:
    assert '{"topic":[0,1]}' in refusal_of(assign=value)


def test_an_empty_subscription_and_a_wrong_pattern_are_refused() -> None:
    assert "subscribe is empty" in refusal_of(subscribe=" ,")
    assert "no regular expression" in refusal_of(subscribepattern="[")
    assert "subscribePattern is empty" in refusal_of(subscribepattern="")
