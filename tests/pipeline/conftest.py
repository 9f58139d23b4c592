"""One Spark session for all tests of the pipeline, and one broker where one is needed."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

from ledgermq.pipeline.link import close_links
from ledgermq.pipeline.session import session
from ledgermq.testing.embedded import Embedded, start_embedded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session", autouse=True)
def closed_links() -> Generator[None]:
    """Connections that this process keeps between tasks are closed in the end, so that none is reported as leaked."""
    yield
    close_links()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Generator[SparkSession]:
    """A session on two cores; what Spark prints is in a file."""
    log = tmp_path_factory.mktemp("spark") / "log"
    conf = {"spark.sql.shuffle.partitions": "1", "spark.sql.warehouse.dir": str(log.parent)}
    started = session("local[2,3]", name="tests", memory="512m", conf=conf, log_path=str(log))
    yield started
    started.stop()


@pytest.fixture(scope="module")
def broker() -> Generator[Embedded]:
    """A broker that all tests of a module share; topics tell them apart."""
    with start_embedded() as embedded:
        yield embedded
