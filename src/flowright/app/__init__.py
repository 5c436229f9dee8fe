"""What starts a run: session, world, the dry run, the terminal, processes on a cluster."""
