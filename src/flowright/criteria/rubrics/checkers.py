"""The rule functions of VerIF: Python that a model wrote, called in the sandbox with instruction
and response."""

from dataclasses import dataclass

from flowright.core.errors import Failure, boundary
from flowright.criteria.rubrics.rows import FUNCTION
from flowright.sandbox import Limits, Sandbox

LIMITS = Limits(cpu_seconds=2.0, wall_seconds=20.0)
"""Limits of one call: a check of a few thousand words takes milliseconds."""

PLAIN_RESPONSE = """\
# A walk through the old town

The old town has 12 streets and 3 squares. Most visitors start at the northern gate, built in 1450.
"Take your time," says the guide; the whole walk takes about 2 hours.

1. First, you pass the market hall. It opens at 8:30, and it sells bread, cheese and fruit.
2. Then you cross the stone bridge (mind the steps).
3. Finally, you reach the tower: its 199 stairs lead to a wide view.

In conclusion, the walk is short and pleasant! Is there anything else to see? There is a museum.

P.S. Bring good shoes.
"""
"""The control: what no function has a reason to fail on."""

_ENTRY = "followed_by_this_response"
# Runs beside the function; the response is a literal in it, which only the sandbox parses.
_CALL = """

def {entry}():
    return bool({function}({instruction}, {response}))
"""
_TESTS = (f"followed = {_ENTRY}()", "assert followed")


@dataclass(frozen=True, slots=True)
class RuleResult:
    """Result of one rule function: ``followed``, None without a result.

    ``fault`` is then its own: it fails on a plain response, too, so the data is at fault. A
    function that fails on this response alone counts as not followed, with the failure in
    ``fault``. ``failure`` is ours: the sandbox was lost.
    """

    followed: bool | None
    fault: str = ""
    failure: Failure | None = None


async def run_rule(
    function: str, instruction: str, response: str, sandbox: Sandbox, limits: Limits = LIMITS
) -> RuleResult:
    """Call the function that the source defines in the sandbox: no files, no network, no more time
    than ``limits``. Its result counts as ``bool`` has it: many end in a ``re.search``, whose None
    is a no."""
    with boundary("rule function") as caught:
        followed, fault = await _call(function, instruction, response, sandbox, limits)
        if followed is not None:
            return RuleResult(followed)
        control, _ = await _call(function, instruction, PLAIN_RESPONSE, sandbox, limits)
        return RuleResult(None if control is None else False, fault)
    return RuleResult(None, failure=caught.failure)


async def _call(
    function: str, instruction: str, response: str, sandbox: Sandbox, limits: Limits
) -> tuple[bool | None, str]:
    """Return the function's result, or None and its error. Raises FailureError for a lost
    sandbox."""
    source = function + _CALL.format(
        entry=_ENTRY,
        function=FUNCTION,
        instruction=ascii(instruction),
        response=ascii(response),
    )
    report = await sandbox.check(source, "", _TESTS, _ENTRY, limits)
    returned, followed = report.results
    if returned.passed:
        return followed.passed, ""
    error = " ".join(returned.message.split())[:300]
    return None, f"{report.status}: {error}"
