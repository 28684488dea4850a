"""Each failure of the pipeline is a PipelineError: whoever runs a job catches one type."""

import pytest

from odradek.pipeline import errors


@pytest.mark.parametrize("kind", [errors.OffsetsLost, errors.TopicRecreated])
def test_what_ends_a_job_is_one_type(kind: type[errors.PipelineError]) -> None:
    with pytest.raises(errors.PipelineError, match="orders-3 was recreated"):
        raise kind("orders-3 was recreated")
