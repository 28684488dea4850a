"""What a topic holds when no transaction is open any more.

A commit is acknowledged before its markers are in all partitions (KIP-98), so who reads at once may
see the records of the last transaction not yet.
"""

from odradek.pipeline.kafka_types import LATEST, PartitionName
from odradek.pipeline.wire.cluster import KafkaCluster
from tests.support.committed_records import CommittedRecord, committed_records
from tests.support.waiting import wait_until


def settled_records(bootstrap_servers: str, topic: str) -> list[CommittedRecord]:
    """All committed records, by partition and offset."""
    with KafkaCluster(bootstrap_servers) as cluster:
        names = [
            PartitionName(topic, each) for each in cluster.topics([topic])[topic].partition_ids
        ]
        wanted = dict.fromkeys(names, LATEST)
        wait_until(
            lambda: (
                cluster.list_offsets(wanted, read_committed=True)
                == cluster.list_offsets(wanted, read_committed=False)
            ),
            what=f"no open transaction in {topic}",
        )
    return committed_records(bootstrap_servers, topic)
