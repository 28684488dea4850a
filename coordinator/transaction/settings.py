"""The configuration of a transaction shard; it may be replaced at any time."""

from typing import Final

from odradek.cluster.metadata.broker_settings import BrokerSettings
from odradek.cluster.metadata.config_schema import Copied, copies

copied: Final = Copied(BrokerSettings)


@copies
class TransactionSettings:
    """Durations in milliseconds. `transaction_version` is the finalized level of that feature: from
    1 on records are written in a form that has the previous producer id (KIP-890)."""

    timeout_max_ms: int = copied(lambda broker: broker.transaction_max_timeout_ms)
    expiration_ms: int = copied(lambda broker: broker.transactional_id_expiration_ms)
    expiry_check_interval_ms: int = copied(
        lambda broker: broker.transaction_remove_expired_transaction_cleanup_interval_ms
    )
    transaction_version: int = 2
