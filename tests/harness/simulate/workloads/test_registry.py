"""Every workload is drawn by some floor, under a name of its own."""

from __future__ import annotations

from harness.simulate.workloads.registry import (
    ALWAYS_DRAWN,
    CLASSIC_WORKLOADS,
    DLEDGER_WORKLOADS,
    DRAWN_WIDELY,
    WORKLOADS,
)


def test_every_workload_is_drawn_somewhere() -> None:
    drawn = {*CLASSIC_WORKLOADS, *DLEDGER_WORKLOADS, *DRAWN_WIDELY}

    assert drawn == set(WORKLOADS)
    assert set(CLASSIC_WORKLOADS) >= ALWAYS_DRAWN
    assert all(workload.name == name for name, workload in WORKLOADS.items())


def test_no_two_workloads_share_a_topic() -> None:
    """Each is judged by the messages of its own."""
    topics = [topic for workload in WORKLOADS.values() if (topic := getattr(workload, "topic", None)) is not None]

    assert len(topics) == len(set(topics))
