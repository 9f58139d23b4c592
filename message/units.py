"""One type per kind of integer, so that an offset of one space is not mistaken for one of another."""

from __future__ import annotations

from typing import NewType

PhysicalOffset = NewType("PhysicalOffset", int)
"""Byte position in the endless commit log."""

QueueOffset = NewType("QueueOffset", int)
"""Entry number in one queue of one topic, counted from 0."""

QueueId = NewType("QueueId", int)
"""Number of a queue inside its topic on one broker."""

BrokerId = NewType("BrokerId", int)
"""0 is the master of a broker name, others are slaves."""

MASTER_ID = BrokerId(0)
