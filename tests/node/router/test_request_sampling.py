"""Every API that is served is measured, the frequent ones by a sample."""

from odradek.node.router.dispatch import HANDLERS
from odradek.node.router.request_sampling import SAMPLE_MASK_OF_API
from odradek.protocol.apis import ApiKey


def test_only_frequent_requests_are_sampled() -> None:
    assert set(HANDLERS) <= set(SAMPLE_MASK_OF_API)
    assert SAMPLE_MASK_OF_API[ApiKey.PRODUCE] == SAMPLE_MASK_OF_API[ApiKey.HEARTBEAT] == 15
    assert SAMPLE_MASK_OF_API[ApiKey.CREATE_TOPICS] == SAMPLE_MASK_OF_API[ApiKey.METADATA] == 0
