"""Training judges: what they are trained on, how they are asked, read and rewarded."""
