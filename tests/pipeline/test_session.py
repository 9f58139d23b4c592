"""The settings of a session."""

from __future__ import annotations

from ledgermq.pipeline.session import LONG_JAVA, settings_of


def test_executors_of_a_cluster_are_not_started_for_a_job_of_a_second() -> None:
    """They compile what runs long and collect in parallel; and checkpoints may be in an object store."""
    here, there = (settings_of(master, "job", {}, short=True, memory="1g") for master in ("local[2]", "spark://host:7077"))

    assert there["spark.executor.extraJavaOptions"] == LONG_JAVA
    assert "spark.executor.extraJavaOptions" not in here
    only_here = {"checkpointFileManagerClass", "host", "bindAddress", "partitions"}
    assert {name.rpartition(".")[2] for name in here.keys() - there.keys()} == only_here


def test_what_the_user_sets_comes_last() -> None:
    given = {"spark.executor.extraJavaOptions": "-Xss4m"}

    assert settings_of("spark://host:7077", "job", given, short=False, memory="1g").items() >= given.items()
