"""What all tests share: the broker of the session, as other projects get it from the plugin.

Imported here so that the tests run from a source tree where the plugin is not installed.
"""

from odradek.testing import kafka_broker, kafka_broker_settings

__all__ = ["kafka_broker", "kafka_broker_settings"]
