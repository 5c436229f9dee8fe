"""A small world in which a judge's bias can be exploited, as the environment ``presentation``: the
policy chooses how a question is solved and how the answer is presented. Everything but the policy
is planted and simulated. The same presentations are operators of the workflow environment.
"""
