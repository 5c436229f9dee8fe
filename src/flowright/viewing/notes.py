"""What must be known of a run before a number of it is believed, on every page of it."""

from flowright.monitoring.report import strips
from flowright.rendering.markup import Html
from flowright.rendering.page import strip
from flowright.viewing.opened import OpenedRun


def notes_of(run: OpenedRun) -> list[Html]:
    """The strips of the report, and why the index is not up to date where it is not."""
    found = strips(run.snapshot())
    if run.trouble:
        found.append(strip("", run.trouble, alarm=True))
    return found
