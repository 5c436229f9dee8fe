"""GRPO: rollouts, advantages, losses, the learner and the loop around them."""
