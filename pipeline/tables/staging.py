"""Where tasks write the files of a plan: below `_odradek/staging/<number>/` of the table.

A file has its name from the plan, its piece and chance: an attempt of a task that Spark runs again
never touches the file of another attempt, and only the files that the driver was told of are
committed.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StagingPlace:
    """A staging folder, as it is sent to the tasks."""

    folder: str
    """A path, or a URI of pyarrow.fs."""
    plan_number: int
    time_column: str
    """`kafka_date`, `kafka_hour`, or empty."""
    is_time_in_file: bool
    """Whether files hold the time column; it is in the folder's name in any case."""
