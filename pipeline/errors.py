"""What ends a pipeline's work: one line that says what is wrong and what to do."""


class PipelineError(Exception):
    """Told to people as it is: what was found, where, and what to change."""


class OffsetsLost(PipelineError):
    """Offsets that were to be read are deleted: the log starts above them."""


class TopicRecreated(PipelineError):
    """The topic has another topic id than the one whose offsets are known (KIP-516)."""
