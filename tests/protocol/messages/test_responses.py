"""The structs of KIP-951 are the same in all APIs that have them."""

import pytest

from odradek.protocol.apis import APIS, ApiKey
from odradek.protocol.messages.responses import NodeEndpoint
from odradek.protocol.schema import fields_of


@pytest.mark.parametrize(
    "key", [ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE]
)
def test_leaders_are_named_with_their_endpoints(key: ApiKey) -> None:
    fields = {field.name: field for field in fields_of(APIS[key].response)}
    assert fields["node_endpoints"].element is NodeEndpoint
