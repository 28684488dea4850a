"""The settings of a broker for delegation tokens: Kafka's keys, with its names and defaults (4.3).

The secret key comes from the configuration of each node, and no client can set it: who knows it can
make tokens of everybody.
"""

from odradek.cluster.metadata.config_definitions import ConfigScope, at_least
from odradek.cluster.metadata.config_schema import long, password, settings
from odradek.cluster.metadata.image import ConfigResourceType

_HANDLERS = "odradek.node.router.handlers.tokens"
_CONTROLLER = "odradek.cluster.controller.delegation_tokens"


@settings(ConfigResourceType.BROKER)
class DelegationTokenSettings:
    """Of one broker; the times are those of the whole cluster."""

    delegation_token_secret_key: str | None = password(
        None,
        "The key with which delegation tokens are signed, the same on all nodes. Without one there"
        " are no delegation tokens. Another key makes all tokens invalid.",
        enforced_by=_HANDLERS,
        scope=ConfigScope.READ_ONLY,
    )
    delegation_token_max_lifetime_ms: int = long(
        604_800_000,
        "How long a delegation token can be renewed; a client may ask for less.",
        enforced_by=_CONTROLLER,
        validator=at_least(1),
    )
    delegation_token_expiry_time_ms: int = long(
        86_400_000,
        "How long a delegation token is valid after it was created or renewed; a client that renews"
        " it may ask for less.",
        enforced_by=_CONTROLLER,
        validator=at_least(1),
    )
    delegation_token_expiry_check_interval_ms: int = long(
        3_600_000,
        "How often expired delegation tokens are removed. They are worth nothing before that.",
        enforced_by=_CONTROLLER,
        validator=at_least(1),
    )
