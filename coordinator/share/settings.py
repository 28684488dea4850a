"""The configuration of a shard of share states; it may be replaced at any time."""

import msgspec


class ShareStateSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`updates_per_snapshot` (0 to 500): the number of updates of a key after which a snapshot is
    written. `log_records_max`: the number of records (or 4 for each key, if that is more) after
    which the whole log is rewritten, so that a load takes a fraction of a second."""

    updates_per_snapshot: int = 500
    log_records_max: int = 2_000
