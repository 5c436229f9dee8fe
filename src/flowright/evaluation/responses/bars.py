"""Progress at the terminal: a bar there, and some lines where the output goes into a file."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

_LINES = 20


@contextmanager
def progress_bar(
    console: Console, title: str
) -> Iterator[Callable[[int, int], Callable[[], None]]]:
    """Called with how many are done and how many there are, once this is known; what it returns is
    called for each that comes, from any thread."""
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    bars = Progress(*columns, console=console, transient=True)

    def begin(done: int, total: int) -> Callable[[], None]:
        every, count = max(1, total // _LINES), done
        if console.is_terminal:
            bars.start()
            bar = bars.add_task(title, total=total, completed=done)
            return lambda: bars.advance(bar)

        def advance() -> None:
            nonlocal count
            count += 1
            if count % every == 0 or count == total:
                console.print(f"{title}: {count:,} of {total:,}", markup=False)

        return advance

    try:
        yield begin
    finally:
        if bars.live.is_started:
            bars.stop()
