"""The response of ShareGroupDescribe (77, v1). Called by `share.groups`."""

from odradek.coordinator.group.modern.group_type import described_assignment
from odradek.coordinator.group.share.assignor import SIMPLE
from odradek.coordinator.group.share.group import ShareGroup
from odradek.coordinator.group.topics import TopicCatalog
from odradek.protocol.messages.share import ShareGroupDescribedGroup, ShareGroupDescribeMember


def describe(group: ShareGroup, topics: TopicCatalog) -> ShareGroupDescribedGroup:
    """The group with the assignment of every member."""
    return ShareGroupDescribedGroup(
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=SIMPLE,
        members=[
            ShareGroupDescribeMember(
                member_id=member_id,
                rack_id=member.rack_id,
                member_epoch=group.current(member_id).member_epoch,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topic_names=list(member.topic_names),
                assignment=described_assignment(group.current(member_id).assigned, topics),
            )
            for member_id, member in group.members()
        ],
    )
