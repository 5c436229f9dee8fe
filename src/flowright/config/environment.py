"""What can be an environment: the value of `environment`, by name or by import path."""

from flowright.plugins import Table

ENVIRONMENTS = Table(
    "environment",
    {
        "workflow": "flowright.environments.workflow:WorkflowEnvironment",
        "judging": "flowright.judge_training.environment:JudgingEnvironment",
        "presentation": "flowright.presentation.environment:PresentationEnvironment",
        "instructions": "flowright.instructions.environment:InstructionsEnvironment",
    },
)
"""Classes, or functions, that make an environment of a configuration."""
