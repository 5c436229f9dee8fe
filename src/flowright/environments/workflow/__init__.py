"""Writing of workflows, the environment that Flowright is named for."""
