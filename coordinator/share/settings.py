"""What a shard of share states needs of the configuration; it may be replaced at any time."""

import msgspec


class ShareStateSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`updates_per_snapshot` (0 to 500): after so many updates of a key its whole state is written
    again. `log_records_max`: so many records, or some for each key if that is more, and the whole
    log is written anew: what a load has to read stays a fraction of a second, and what is written
    anew a fraction of all writes."""

    updates_per_snapshot: int = 500
    log_records_max: int = 2_000
