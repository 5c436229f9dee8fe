"""FlowSteer's canvas (arXiv 2602.01664): the policy builds a workflow by one edit a turn."""
