"""Shared ground of all rooms: the failure law, files, journals, tables of rows, batches of calls,
the network."""
