"""Code tasks whose tests say nothing: the reference fails them, or a function that does nothing
passes. Found before training, by running both in the sandbox."""

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path

import flowright
from flowright.core.errors import FailureError
from flowright.core.files import write_text
from flowright.data.task import Problem
from flowright.grading.gold import run_tests
from flowright.sandbox import Sandbox, TestReport

CHECKED = "checked_references.txt"
"""Hashes of tasks that passed, a line each, in the cache folder."""
_MANY = 100  # checks for which progress is shown


@dataclass(slots=True)
class ReferenceReport:
    """Findings by task id. ``kept`` were known to pass, ``without`` have no reference, those
    ``unchecked`` lost their sandbox. ``examples``: public tests that are left of a docstring's."""

    checked: int = 0
    kept: int = 0
    without: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    unchecked: dict[str, str] = field(default_factory=dict)
    examples: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def public_tests(self, task: Problem) -> tuple[str, ...]:
        return self.examples.get(task.id, task.public_tests)

    def lines(self) -> list[str]:
        """Return notes for people; empty if there is no code."""
        if not self.checked + self.kept + self.without + len(self.unchecked):
            return []
        passed = self.checked + self.kept - len(self.failed)
        of = self.checked + self.kept
        shown = [f"{passed:,} of {of:,} references pass their own tests"] if of else []
        if self.kept:
            shown[0] += f" ({self.kept:,} known from before)"
        if self.without:
            shown.append(f"{self.without:,} code tasks have no reference: their tests are unproven")
        if self.unchecked:
            why = next(iter(self.unchecked.values()))
            shown.append(f"{len(self.unchecked):,} references could not be checked: {why}")
        if self.examples:
            shown.append(f"{len(self.examples):,} tasks lose examples that their reference fails")
        return shown


async def check_references(
    tasks: Iterable[Problem],
    sandbox: Sandbox,
    cache: Path | None = None,
    begin: Callable[[str, int], Callable[[], None]] = lambda name, total: lambda: None,
    examples: Collection[str] = (),
) -> ReferenceReport:
    """Run the reference of every code task against its tests, in a sandbox that is open.

    Tasks that passed before are known by their content from the ``cache`` folder. ``begin`` adds a
    progress bar where there are many. The public tests of the tasks ``examples`` (ids) come from a
    docstring: those that the reference fails are dropped.
    """
    report = ReferenceReport()
    code = [task for task in tasks if task.kind == "code"]
    report.without = sum(not task.reference.strip() for task in code)
    code = [task for task in code if task.reference.strip()]
    path = cache / CHECKED if cache else None
    known = _read(path)
    waiting = {task.id: key for task in code if (key := _key(task, sandbox)) not in known}
    report.kept = len(code) - len(waiting)
    advance = begin("references", len(waiting)) if len(waiting) >= _MANY else lambda: None

    async def check(task: Problem) -> None:
        try:
            await _check(task, sandbox, report, task.id in examples)
        except FailureError as error:
            report.unchecked[task.id] = str(error)
        else:
            report.checked += 1
        advance()

    async with asyncio.TaskGroup() as group:  # the sandbox runs equal ones once
        for task in code:
            if task.id in waiting:
                group.create_task(check(task))
    bad = report.failed.keys() | report.unchecked.keys() | report.examples.keys()
    passed = {key for id, key in waiting.items() if id not in bad}
    if path is not None and passed:
        with suppress(OSError):  # a cache that cannot be written is none
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, "".join(f"{key}\n" for key in sorted(known | passed)))
    return report


async def _check(
    task: Problem, sandbox: Sandbox, report: ReferenceReport, has_examples: bool
) -> None:
    found = await run_tests(task, task.reference, sandbox)
    if not found.passed and has_examples:
        shown = dict(zip(task.public_tests, found.results, strict=False))
        wrong = tuple(test for test, result in shown.items() if not result.passed)
        right = tuple(test for test in task.public_tests if test not in wrong)
        found = await run_tests(replace(task, public_tests=right), task.reference, sandbox)
        if found.passed:
            report.examples[task.id] = right
    if not found.passed:
        report.failed[task.id] = f"the reference fails its own tests: {_first_failure(found)}"
        return
    nothing = "" if task.entry_point is None else f"def {task.entry_point}(*a, **k):\n    pass\n"
    if (await run_tests(task, nothing, sandbox)).passed:
        report.failed[task.id] = "the tests pass for a program that does nothing"


def _first_failure(report: TestReport) -> str:
    failed = [result.message for result in report.results if not result.passed]
    line = " ".join(failed[0].split()) if failed else report.status
    return f"{report.count} of {len(report.results)} pass; the first failure: {line[:300]}"


def _key(task: Problem, sandbox: Sandbox) -> str:
    asked = (task.reference, task.test_setup, task.tests, task.entry_point, sandbox.limits)
    return blake2b(repr((flowright.__version__, asked)).encode(), digest_size=16).hexdigest()


def _read(path: Path | None) -> set[str]:
    try:
        return set(path.read_text(encoding="ascii").split()) if path else set()
    except (OSError, ValueError):
        return set()
