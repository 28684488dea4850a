"""ShareGroupDescribe: the group with the assignments of its members."""

from odradek.coordinator.group.share.responses import describe
from odradek.coordinator.group.topics import TopicCatalog
from tests.support.consumer_playbook import image_of
from tests.support.share_group_playbook import ShareConsumerMember, ShareStage, settle


def test_a_group_is_described_with_the_names_of_topics_that_exist() -> None:
    stage = ShareStage({"a": 2, "b": 1})
    settle(stage, ShareConsumerMember(stage, "m", topics=["a", "b"]))
    described = describe(stage.shares(), stage.shard.topics)
    [member] = described.members
    read = {topic.topic_name: topic.partitions for topic in member.assignment.topic_partitions}
    assert read == {"a": [0, 1], "b": [0]}
    assert member.subscribed_topic_names == ["a", "b"]
    assert (member.client_id, member.client_host) == ("client", "/127.0.0.1")
    assert member.member_epoch == described.assignment_epoch
    [member] = describe(stage.shares(), TopicCatalog(image_of({"b": 1}))).members
    assert [topic.topic_name for topic in member.assignment.topic_partitions] == ["b"]
