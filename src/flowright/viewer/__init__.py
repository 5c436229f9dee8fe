"""Looking at rollouts: an index over a run's records, and the pages that are made from both."""
