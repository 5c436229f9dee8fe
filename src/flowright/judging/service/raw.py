"""What models said for a verdict, as the judge service shows it: in a response and in its log."""

from pydantic import BaseModel, ConfigDict

from flowright.judging.messages import whole_characters
from flowright.judging.verdict import Verdict


class RawReplyBody(BaseModel):
    """What a model said to one attempt, before it was read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str
    finish_reason: str
    reasoning: str | None = None


def raw_replies(verdict: Verdict) -> tuple[RawReplyBody, ...]:
    """The replies attempt by attempt; of a vote those of its members."""
    if not verdict.replies:
        return tuple(reply for member in verdict.members for reply in raw_replies(member))
    return tuple(
        RawReplyBody(
            text=whole_characters(reply.text),
            finish_reason=reply.finish_reason,
            reasoning=None if reply.reasoning is None else whole_characters(reply.reasoning),
        )
        for reply in verdict.replies
    )
