"""A sandbox that cannot run anything: what is said then is said without it."""

from flowright.core.errors import FailureError, Reason
from flowright.sandbox import Sandbox


class LostSandbox(Sandbox):
    """A sandbox that is lost whatever it is asked for."""

    async def run(self, *arguments: object, **keywords: object):
        raise FailureError(Reason.SANDBOX_LOST, "fork: no memory")

    check = run
