"""The record builders and codecs of other Kafka clients, for tests that compare ours with them."""

import warnings

with warnings.catch_warnings():
    # kafka-python reads its schemas with a deprecated function while it is imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.codec as kafka_codec
    import kafka.protocol.consumer.metadata as kafka_consumer_protocol
    import kafka.record.default_records as kafka_default
    import kafka.record.legacy_records as kafka_legacy
    import kafka.record.memory_records as kafka_memory

import aiokafka.codec as aiokafka_codec
import aiokafka.coordinator.protocol as aiokafka_consumer_protocol
import aiokafka.record.default_records as aiokafka_default
import aiokafka.record.legacy_records as aiokafka_legacy
import aiokafka.record.memory_records as aiokafka_memory

__all__ = [
    "aiokafka_codec",
    "aiokafka_consumer_protocol",
    "aiokafka_default",
    "aiokafka_legacy",
    "aiokafka_memory",
    "kafka_codec",
    "kafka_consumer_protocol",
    "kafka_default",
    "kafka_legacy",
    "kafka_memory",
]
