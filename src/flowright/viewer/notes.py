"""What must be known of a run before a number of it is believed, on every page of it."""

from flowright.viewer.monitoring.report import strips
from flowright.viewer.rendering.markup import Html, strip
from flowright.viewer.run_list import OpenedRun


def notes_of(run: OpenedRun) -> list[Html]:
    """The strips of the report, and why the index is not up to date where it is not."""
    found = strips(run.snapshot())
    if run.trouble:
        found.append(strip("", run.trouble, alarm=True))
    return found
