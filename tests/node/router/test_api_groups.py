"""Every API that is served belongs to one group."""

from odradek.node.router.api_groups import GROUP_OF_API, SAMPLE_MASK_OF_API
from odradek.node.router.dispatch import HANDLERS
from odradek.node.wire.request_times import GROUPS
from odradek.protocol.apis import ApiKey


def test_every_served_api_has_a_group_and_every_group_has_one() -> None:
    assert set(HANDLERS) <= set(GROUP_OF_API)
    assert {GROUP_OF_API[key] for key in HANDLERS} == set(range(len(GROUPS)))
    assert GROUPS[GROUP_OF_API[ApiKey.HEARTBEAT]] == "group"
    assert GROUPS[GROUP_OF_API[ApiKey.CREATE_TOPICS]] == "admin"


def test_only_frequent_requests_are_sampled() -> None:
    assert SAMPLE_MASK_OF_API[ApiKey.PRODUCE] == SAMPLE_MASK_OF_API[ApiKey.HEARTBEAT] == 15
    assert SAMPLE_MASK_OF_API[ApiKey.CREATE_TOPICS] == SAMPLE_MASK_OF_API[ApiKey.METADATA] == 0
