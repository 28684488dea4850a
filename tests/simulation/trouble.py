"""Profiles of faults for simulated clusters; each looks for another kind of bug."""

from dataclasses import dataclass, replace
from typing import Final

from odradek.cluster.metadata.group_settings import ConsumerGroupSettings, StreamsGroupSettings
from odradek.cluster.raft.settings import RaftSettings
from odradek.coordinator.group.settings import GroupSettings
from tests.simulation.node_parts import NodeSettings

SETTINGS: Final = NodeSettings(
    raft=RaftSettings(election_timeout_ms=200, heartbeat_ms=60, snapshot_chunk_bytes=400),
    static={
        "broker.session.timeout.ms": "500",
        "broker.heartbeat.interval.ms": "120",
        "min.insync.replicas": "2",
        "leader.imbalance.check.interval.seconds": "2",
    },
    group=GroupSettings(
        session_timeout_min_ms=100,
        initial_rebalance_delay_ms=100,
        new_member_join_timeout_ms=2_000,
        streams=StreamsGroupSettings(
            session_timeout_ms=800,
            initial_rebalance_delay_ms=100,
            assignment_interval_ms=50,
            num_standby_replicas=1,
        ),
        consumer=ConsumerGroupSettings(session_timeout_ms=800, assignment_interval_ms=50),
    ),
    # More than the longest wait of a fetch (500 ms), or an idle follower would be out of sync.
    lag_max_ms=700,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """The faults of a cluster and their mean intervals; 0 is never."""

    node_count: int = 3
    partition_count: int = 2
    duration_ms: int = 5_000
    produce_interval_ms: int = 40
    consume_interval_ms: int = 120
    member_count: int = 2
    consumer_member_count: int = 0
    """Members of a consumer group (KIP-848)."""
    streams_member_count: int = 0
    """Threads of a Kafka Streams application."""
    member_interval_ms: int = 90
    share_member_count: int = 0
    """Members by partition; without any there are no share groups."""
    share_interval_ms: int = 40
    kill_interval_ms: int = 1_500
    down_ms_max: int = 1_200
    power_interval_ms: int = 0
    worker_interval_ms: int = 0
    shutdown_interval_ms: int = 0
    cut_interval_ms: int = 1_200
    cut_ms_max: int = 1_500
    stop_interval_ms: int = 3_000
    stop_ms_max: int = 900
    slow_disk_interval_ms: int = 3_000
    leap_interval_ms: int = 2_500
    """Mean interval in which a node's clock jumps ahead."""
    snapshot_interval_ms: int = 2_500
    reassign_interval_ms: int = 0
    elect_interval_ms: int = 4_000
    depose_interval_ms: int = 0
    """Mean interval in which a leader is deposed and learns of it late, or a transaction
    coordinator is deposed and its markers arrive late."""
    waver_interval_ms: int = 0
    """Mean interval in which a leader and a follower that was cut off for a while swap
    leadership."""
    leave_interval_ms: int = 3_000
    rewind_interval_ms: int = 0
    leader_share: float = 0.5
    """The share of faults that hit the leader of a partition."""
    delay_ms_max: int = 5
    drop_share: float = 0.02
    double_share: float = 0.02
    late_copy_share: float = 0.0
    """The share of transaction markers that arrive again later. Clients of version 1 cannot bear
    it: all of their transactions have one epoch."""
    break_share: float = 0.002
    client_loss_share: float = 0.02
    clock_drift: float = 0.0
    slow_share: float = 0.002
    """The share of messages between a node's processes that are late."""
    payer_count: int = 0
    payer_interval_ms: int = 8
    payer_restart_share: float = 0.3
    """The share of unknown outcomes after which a payer initializes its producer again."""
    short_lived_payer_count: int = 0
    settings: NodeSettings = SETTINGS


PROFILES: Final[tuple[Trouble, ...]] = (
    Trouble(leap_interval_ms=0),
    Trouble(
        kill_interval_ms=2_500, power_interval_ms=900, shutdown_interval_ms=2_500, clock_drift=0.05
    ),
    Trouble(
        kill_interval_ms=700,
        cut_interval_ms=500,
        worker_interval_ms=900,
        leader_share=0.8,
        slow_share=0.02,
    ),
    Trouble(node_count=4, reassign_interval_ms=700, kill_interval_ms=1_800, partition_count=3),
    Trouble(
        kill_interval_ms=2_500,
        cut_interval_ms=350,
        cut_ms_max=900,
        leap_interval_ms=0,
        stop_interval_ms=900,
        delay_ms_max=40,
        drop_share=0.06,
        break_share=0.02,
        leader_share=0.9,
        clock_drift=0.1,
    ),
    # No broker is fenced. Leaders find followers that lag, and change their ISRs over and over with
    # commands that arrive late and twice.
    Trouble(
        kill_interval_ms=2_000,
        cut_interval_ms=0,
        stop_interval_ms=500,
        stop_ms_max=1_800,
        elect_interval_ms=600,
        leader_share=0.3,
        delay_ms_max=60,
        double_share=0.3,
        slow_share=0.02,
        settings=replace(SETTINGS, static={**SETTINGS.static, "broker.session.timeout.ms": "3000"}),
    ),
    # Members join and leave while their coordinator moves.
    Trouble(
        partition_count=1,
        produce_interval_ms=150,
        consume_interval_ms=300,
        member_count=3,
        member_interval_ms=40,
        leave_interval_ms=500,
        kill_interval_ms=900,
        cut_interval_ms=400,
        waver_interval_ms=2_000,
        leader_share=0.8,
        slow_share=0.01,
    ),
    # The same for members of consumer groups, with more partitions.
    Trouble(
        partition_count=4,
        produce_interval_ms=400,
        consume_interval_ms=600,
        member_count=0,
        consumer_member_count=4,
        member_interval_ms=40,
        leave_interval_ms=350,
        kill_interval_ms=1_400,
        worker_interval_ms=2_000,
        cut_interval_ms=1_100,
        leader_share=0.8,
        slow_share=0.01,
    ),
    # The same for threads of Kafka Streams, of two processes, with standby tasks.
    Trouble(
        partition_count=3,
        produce_interval_ms=400,
        consume_interval_ms=600,
        member_count=0,
        streams_member_count=4,
        member_interval_ms=40,
        leave_interval_ms=350,
        kill_interval_ms=1_400,
        worker_interval_ms=2_000,
        cut_interval_ms=1_100,
        leader_share=0.8,
        slow_share=0.01,
    ),
    # Transactions over several partitions and offsets, of both versions.
    Trouble(
        partition_count=3,
        produce_interval_ms=400,
        consume_interval_ms=600,
        member_count=1,
        kill_interval_ms=1_300,
        worker_interval_ms=1_500,
        cut_interval_ms=900,
        leader_share=0.8,
        delay_ms_max=20,
        slow_share=0.01,
        payer_count=3,
        depose_interval_ms=900,
    ),
    # Share groups while partition leaders and share coordinators move.
    Trouble(
        partition_count=1,
        produce_interval_ms=60,
        consume_interval_ms=300,
        member_count=1,
        share_member_count=3,
        leave_interval_ms=700,
        kill_interval_ms=1_500,
        cut_interval_ms=1_000,
        stop_interval_ms=1_500,
        depose_interval_ms=700,
        leader_share=0.8,
        delay_ms_max=15,
        double_share=0.3,
        slow_share=0.05,
    ),
)
"""Seed n has the faults of profile n modulo their number."""
KILLS, POWER, WORKERS, MOVES, CUTS, LAGS, GROUPS, CONSUMERS, STREAMS, TRANSACTIONS, SHARES = (
    PROFILES
)

# -- aimed at single bugs --------------------------------------------------------------------------

LAGGARDS: Final = replace(LAGS, partition_count=4, stop_interval_ms=300, elect_interval_ms=300)
RESTARTS: Final = replace(KILLS, kill_interval_ms=700, elect_interval_ms=500)
WAVERING: Final = replace(
    CUTS,
    partition_count=1,
    produce_interval_ms=200,
    kill_interval_ms=0,
    cut_interval_ms=0,
    stop_interval_ms=0,
    waver_interval_ms=150,
    delay_ms_max=5,
)
UNSTEADY: Final = replace(
    GROUPS, kill_interval_ms=0, cut_interval_ms=0, stop_interval_ms=0, waver_interval_ms=400
)
"""Coordinators change, and have different state."""
UNSTEADY_STREAMS: Final = replace(
    STREAMS,
    kill_interval_ms=0,
    worker_interval_ms=0,
    cut_interval_ms=0,
    stop_interval_ms=0,
    waver_interval_ms=250,
    leave_interval_ms=150,
)
"""Threads still have to revoke what their next coordinator must remember."""
STALLED: Final = replace(
    CONSUMERS,
    cut_interval_ms=0,
    stop_interval_ms=250,
    leave_interval_ms=200,
    stop_ms_max=1_800,
    leader_share=0.3,
    delay_ms_max=40,
    double_share=0.3,
    slow_share=0.02,
    settings=LAGS.settings,
)
"""Members of consumer groups. Sometimes a leader is alone in its ISR and refuses writes."""
DEPOSED: Final = replace(
    TRANSACTIONS,
    kill_interval_ms=0,
    worker_interval_ms=0,
    cut_interval_ms=0,
    stop_interval_ms=0,
    depose_interval_ms=300,
    payer_count=5,
)
"""Only the transaction coordinators change."""
LATE_MARKERS: Final = replace(DEPOSED, partition_count=1, payer_count=6, consume_interval_ms=150)
"""All transactions are in one partition: a late marker arrives in the next transaction."""
LEAVERS: Final = replace(
    DEPOSED,
    payer_count=0,
    short_lived_payer_count=5,
    leap_interval_ms=0,
    depose_interval_ms=900,
    kill_interval_ms=3_000,
    delay_ms_max=10,
    late_copy_share=0.3,
)
"""Clients of transaction version 2 leave and come back. Clocks do not leap, so that they know when
a transaction may have timed out."""
SUCCESSORS: Final = replace(
    SHARES, kill_interval_ms=0, cut_interval_ms=0, leap_interval_ms=0, depose_interval_ms=350
)
"""Leaders of share partitions change, and learn of it late."""
