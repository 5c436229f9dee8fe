"""Start runs and servers: training, evaluation, the dry run, plans, serving a policy, vLLM."""
