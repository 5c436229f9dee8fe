"""The presentation of canvases: that of the workflows which run them, and their size."""

from dataclasses import replace

from flowright.environments.display import Curve
from flowright.environments.workflow.display import DISPLAY as WORKFLOW

DISPLAY = replace(
    WORKFLOW,
    completion="canvas",
    language="",
    curves=(
        *WORKFLOW.curves,
        Curve("Operators per canvas", "canvas/operators", "operators"),
        Curve("Right with fewer than five operators", "canvas/right_small", "small"),
    ),
)
