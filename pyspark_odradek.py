"""Lets Spark find the data source `odradek`: it imports the modules named `pyspark_*` and takes
their class DefaultSource."""

from odradek.pipeline.data_source import OdradekDataSource as DefaultSource

__all__ = ["DefaultSource"]
