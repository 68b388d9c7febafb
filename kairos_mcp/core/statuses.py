"""The words for where a mandate stands."""

from typing import Literal

MandateStatus = Literal[
    "created",
    "active",
    "paused_at_checkpoint",
    "paused_risk_exceeded",
    "paused_goal_drift",
    "interrupted",
    "terminated",
]
"""The status of a mandate.

A run's outcome is `terminated` or `interrupted`; a pause's reason is one of the others; a mandate whose newest run is
under way is `active`, one without a run `created`.
"""
