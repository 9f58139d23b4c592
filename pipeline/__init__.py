"""Topics as tables and streams of Spark, and the jobs built on them; needs the extra `ledgermq[spark]`.

Workers of Spark import this package for each of their processes, so nothing here imports Spark before it is used.
"""

from __future__ import annotations

from .registration import register, register_views

__all__ = ["register", "register_views"]
