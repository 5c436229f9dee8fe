"""The presentation of games on screens."""

from flowright.environments.display import Display

DISPLAY = Display(
    completion="move",
    kinds=("number", "grid"),
    curves=(),
    seconds=(),
    labels=("chance", "optimum"),
)
