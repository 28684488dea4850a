"""The configuration of a shard of share states; it may be replaced at any time."""

from typing import Final

from odradek.cluster.metadata.broker_settings import BrokerSettings
from odradek.cluster.metadata.config_schema import Copied, copies

copied: Final = Copied(BrokerSettings)


@copies
class ShareStateSettings:
    """`updates_per_snapshot` (0 to 500): the number of updates of a key after which a snapshot is
    written. `log_records_max`: the number of records (or 4 for each key, if that is more) after
    which the whole log is rewritten, so that a load takes a fraction of a second."""

    updates_per_snapshot: int = copied(
        lambda broker: broker.share_coordinator_snapshot_update_records_per_snapshot
    )
    log_records_max: int = 2_000
