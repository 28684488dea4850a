"""Where a raw request goes: every API that is served has one place."""

from collections import Counter

from odradek.node.router.dispatch import HANDLERS
from odradek.protocol.apis import PRIVATE_KEY_MIN
from tests.conformance import routing


def test_every_api_that_is_served_has_its_place() -> None:
    places = (
        routing.PARTITIONS.keys(),
        routing.GROUPS | routing.GROUP_LISTS.keys(),
        routing.OF_ALL_NODES.keys(),
        routing.TRANSACTIONS | routing.IN_TRANSACTIONS,
        routing.SHARE_STATES,
        routing.CONFIGS,
        routing.OF_THE_NODE_ASKED,
        routing.OF_ANY_NODE,
    )
    counts = Counter(key for place in places for key in place)
    served = {key for key in HANDLERS if key < PRIVATE_KEY_MIN}
    assert counts == dict.fromkeys(served, 1)
