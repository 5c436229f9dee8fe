"""Watching a run: a live terminal view and a report in one HTML file, from run files alone."""
