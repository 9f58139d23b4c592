"""What all tests share."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A busy machine must not turn a slow example into a failure: hangs are found by the limits of the tests themselves.
settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared machine")
