"""Fixtures of all tests: the broker of the session, as other projects get it from the plugin.

Imported here so that the tests run from a source tree without the installed plugin.
"""

from odradek.testing import kafka_broker, kafka_broker_settings

__all__ = ["kafka_broker", "kafka_broker_settings"]
