"""What can be an environment: the value of `environment`, by name or by import path."""

from flowright.core.plugins import Table

ENVIRONMENTS = Table(
    "environment",
    {
        "workflow": "flowright.environments.workflow.environment:WorkflowEnvironment",
        "judging": "flowright.environments.judging.environment:JudgingEnvironment",
        "presentation": "flowright.environments.presentation.environment:PresentationEnvironment",
        "instructions": "flowright.environments.instructions.environment:InstructionsEnvironment",
    },
)
"""Classes, or functions, that make an environment of a configuration."""
