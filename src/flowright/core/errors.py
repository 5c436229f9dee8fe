"""The failure law: who is to blame for what went wrong, and the one place where that is decided.

A failure of the policy (its program does not parse, crashes, overspends) is data and earns a low
reward. A failure of ours (a server, a judge, a sandbox, a bug) leaves the sample unscored. Nothing
else in the package may turn an exception into a reward: every piece of work that can fail runs
inside :func:`boundary`, the only place with ``except Exception``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Blame(StrEnum):
    """The party at fault for a failure. Only the policy's faults are rewarded (low)."""

    POLICY = "policy"
    INFRASTRUCTURE = "infrastructure"


class Reason(StrEnum):
    """The failure taxonomy: a closed list, in the order in which a rollout can meet them."""

    # The policy's.
    TRUNCATED = "truncated"  # the completion hit its token limit before the program ended
    NO_PROGRAM = "no_program"  # no program found in the completion
    SYNTAX = "syntax"  # not Python
    UNSUPPORTED = "unsupported"  # Python, but outside the workflow language
    TYPE = "type"  # calls an operator that does not exist, or with wrong arguments
    CRASHED = "crashed"  # raised while running
    BAD_ARGUMENT = "bad_argument"  # handed an operator a value that it cannot take
    NO_ANSWER = "no_answer"  # returned nothing that can be an answer
    CALL_BUDGET = "call_budget"
    TOKEN_BUDGET = "token_budget"
    SIZE_BUDGET = "size_budget"  # a prompt or an answer that is too large
    TIME_BUDGET = "time_budget"
    MEMORY_BUDGET = "memory_budget"
    # Ours.
    LLM_UNAVAILABLE = "llm_unavailable"
    WORKER_LOST = "worker_lost"  # the workflow runtime lost a worker
    SANDBOX_LOST = "sandbox_lost"
    JUDGE_FAILED = "judge_failed"
    REWARD_FAILED = "reward_failed"  # a term of the reward has no value
    INTERNAL = "internal"  # a bug of ours

    @property
    def blame(self) -> Blame:
        return Blame.INFRASTRUCTURE if self in _OURS else Blame.POLICY


_OURS = frozenset(
    {
        Reason.LLM_UNAVAILABLE,
        Reason.WORKER_LOST,
        Reason.SANDBOX_LOST,
        Reason.JUDGE_FAILED,
        Reason.REWARD_FAILED,
        Reason.INTERNAL,
    }
)


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure as data. ``line`` is the line of the policy's program, if known."""

    reason: Reason
    message: str
    line: int | None = None

    @property
    def blame(self) -> Blame:
        return self.reason.blame

    def record(self) -> dict[str, Any]:
        """Return the JSON form: ``reason``, ``blame``, ``message`` and ``line``."""
        return {
            "reason": self.reason.value,
            "blame": self.blame.value,
            "message": self.message,
            "line": self.line,
        }

    def __str__(self) -> str:
        where = f" (line {self.line})" if self.line is not None else ""
        return f"{self.reason.value}{where}: {self.message}"


class FlowrightError(Exception):
    """Base of every exception that this package raises on purpose."""


class UserError(FlowrightError):
    """Something that the user can mend. ``problems`` holds one line each; shown without traceback.

    Command lines print the lines on stderr and exit with ``exit_code``.
    """

    exit_code = 2

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class ConfigError(UserError):
    """A configuration that cannot be used: every mistake at once, as ``file: key: what to do``."""


class DataError(UserError):
    """A data file that cannot be used, as ``file:line: what is wrong``."""


class RunError(UserError):
    """A run directory that cannot be used: held by another trainer, unreadable, disk full."""


class PeerLost(RunError):
    """Raised when another process of the same run has ended."""


class RunPaused(UserError):
    """The run stopped itself rather than train on garbage; its state is saved (law 1)."""

    exit_code = 3


class FailureError(FlowrightError):
    """A :class:`Failure` on its way up to the nearest :func:`boundary`."""

    def __init__(self, reason: Reason, message: str, line: int | None = None) -> None:
        self.failure = Failure(reason, message, line)
        super().__init__(str(self.failure))

    def at(self, line: int | None) -> "FailureError":
        """The same failure in another line of the program."""
        return FailureError(self.failure.reason, self.failure.message, line)


@dataclass(slots=True)
class Attribution:
    """A failure that a :func:`boundary` caught; ``failure`` is None when the work inside it
    succeeded."""

    failure: Failure | None = None


@contextmanager
def boundary(where: str) -> Iterator[Attribution]:
    """Run a piece of work; turn its failure into data with the blame attached.

    A :class:`FailureError` keeps its own reason. Any other exception is a bug or a breakdown on our
    side, whatever the policy wrote, and becomes ``INTERNAL``. Errors that the user must mend
    (:class:`UserError`) and cancellation go through.
    """
    attribution = Attribution()
    try:
        yield attribution
    except FailureError as error:
        attribution.failure = error.failure
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - the one place, see the module docstring
        message = f"{where}: {type(error).__name__}: {error}"
        attribution.failure = Failure(Reason.INTERNAL, message[:2000])
