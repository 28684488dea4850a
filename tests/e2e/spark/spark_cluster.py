"""A standalone Spark on this machine: a master and a worker, from the installed package alone."""

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tests.e2e.spark.offload_job import environment, kill_group
from tests.support.ports import free_port
from tests.support.waiting import wait_until

HOME = Path(pyspark.__file__).parent


@contextmanager
def standalone_spark(
    folder: Path, worker_environment: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Gives the master's URL. Both run in `folder`; the worker has another environment if it is
    given."""
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    # Not the spark-class of the environment's bin, which asks some python3 where Spark is.
    home = {"SPARK_HOME": str(HOME), "SPARK_WORKER_DIR": str(folder / "work")}
    started = []
    log = folder / "spark.log"

    def start(kind: str, *arguments: str, env: Mapping[str, str]) -> None:
        with log.open("ab") as output:
            started.append(
                subprocess.Popen(
                    [HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{kind}", *arguments],
                    cwd=folder,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**env, **home},
                    start_new_session=True,
                )
            )

    try:
        listen = ("--host", "127.0.0.1", "--webui-port", "0")
        start("master.Master", *listen, "--port", str(port), env=environment())
        resources = ("--cores", "2", "--memory", "1g")
        own = environment() if worker_environment is None else worker_environment
        start("worker.Worker", *listen, *resources, url, env=own)
        registered = "Successfully registered with master"
        wait_until(lambda: registered in log.read_text(), timeout_s=120, what=registered)
        yield url
    finally:
        for process in reversed(started):
            kill_group(process)


def without_odradek() -> dict[str, str]:
    """The environment of a worker whose Python finds nothing of this project by itself."""
    kept = environment()
    del kept["PYTHONPATH"]
    return kept | {"PATH": os.defpath}
