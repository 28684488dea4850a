"""The configuration of a transaction shard; it may be replaced at any time."""

import msgspec


class TransactionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Durations in milliseconds. `transaction_version` is the finalised level of that feature: from
    1 on records are written in a form that remembers a change of producer id (KIP-890)."""

    timeout_max_ms: int = 900_000
    expiration_ms: int = 604_800_000
    expiry_check_interval_ms: int = 3_600_000
    transaction_version: int = 2
