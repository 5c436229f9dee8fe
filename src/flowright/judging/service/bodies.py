"""Request and response bodies of the judge service, and their queries and verdicts."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SkipValidation,
    ValidationError,
)

from flowright.judging.payloads import (
    completion_text,
    prompt_text,
    read_answer_type,
    response_of as response_fields,
    whole_characters,
)
from flowright.judging.verdict import AnswerType, Criterion, JudgeQuery, Source, Status, Verdict


class Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RawReplyBody(Wire):
    """A model's reply to one attempt, unparsed."""

    text: str
    finish_reason: str
    reasoning: str | None = None


def raw_replies(verdict: Verdict) -> tuple[RawReplyBody, ...]:
    """Return the replies by attempt; of a vote those of its members."""
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


_LONGEST_MESSAGE = 1000  # characters; it may quote a key of the caller's
_MOST_PROBLEMS = 5
_LONGEST_ID = 256
_LONGEST_INSTRUCTION = 20_000
NO_INSTRUCTION = "instruction: this server's wording is its operator's (server.own_instructions)"


_SURROGATE = re.compile("[\ud800-\udfff]")


def _only_whole_characters(text: str) -> str:
    if _SURROGATE.search(text):
        raise ValueError("half of a surrogate pair is no character")
    return text


def _not_zero(points: float) -> float:
    if points == 0:
        raise ValueError("a criterion of 0 points decides nothing")
    return points


Text = Annotated[str, AfterValidator(_only_whole_characters)]
Messages = list[dict[str, Any]]
_ANY_FORM: Any = str | Messages
Prompt = Annotated[Text, BeforeValidator(prompt_text, json_schema_input_type=_ANY_FORM)]
Completion = Annotated[Text, BeforeValidator(completion_text, json_schema_input_type=_ANY_FORM)]


class CriterionRequest(Wire):
    """One line of a rubric."""

    text: Text = Field(min_length=1, pattern=r"\S", description="A statement about the answer.")
    points: Annotated[float, AfterValidator(_not_zero)] = Field(
        allow_inf_nan=False, description="What it is worth where it holds; below 0: a fault."
    )


class JudgeRequest(Wire):
    """One answer to be judged."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "prompt": "What is 6 * 7?",
                    "completion": "The answer is 42.",
                    "answer": "42",
                    "answer_type": "number",
                    "request_id": "lesson-1/question-3",
                }
            ]
        }
    )

    prompt: Prompt = Field(description="The question: text, or messages with role and content.")
    completion: Completion = Field(
        description="The answer to be judged: text, or messages, of which the assistant's last."
    )
    answer: Text = Field(
        default="",
        description="The reference: what is right. Without one a model goes by the question alone, "
        "and rules cannot tell.",
    )
    answer_type: Annotated[
        AnswerType,
        BeforeValidator(read_answer_type),
    ] = Field(
        default="free_text",
        description="What the reference is; in any case of letters, also as `MATH_EXPRESSIONS`.",
    )
    alternatives: tuple[Text, ...] = Field(default=(), description="Other references that count.")
    evidence: Text | None = Field(
        default=None, description="What was observed, such as `passed 2 of 3 tests`."
    )
    rival: Text | None = Field(
        default=None,
        description="Another answer, with which `completion` is compared. "
        "For a judge whose `judge.ask` is `pairwise`.",
    )
    criteria: tuple[CriterionRequest, ...] = Field(
        default=(), description="A rubric: the judge is asked which of its lines hold."
    )
    instruction: Text | None = Field(
        default=None,
        min_length=1,
        max_length=_LONGEST_INSTRUCTION,
        pattern=r"\S",
        description="What the judge is asked, in place of its wording's. Only where the server's "
        "`own_instructions` is true.",
    )
    include_raw: bool = Field(
        default=False, description="Whether `metadata.raw_replies` holds the replies of the models."
    )
    fresh: bool = Field(
        default=False,
        description="Whether the judge itself has to answer, so that it can be measured: no cache, "
        "no circuit breaker, no second reading.",
    )
    request_id: Annotated[Text, Field(min_length=1, max_length=_LONGEST_ID)] | None = Field(
        default=None,
        description="Comes back with the verdict, and names the sample: seeds are derived from "
        "it. Without one it is a hash of the request, so that equal requests are judged alike.",
    )

    @property
    def id(self) -> str:
        """The caller's id, or one derived from the question."""
        if self.request_id is not None:
            return self.request_id
        unasked = {"request_id", "include_raw", "fresh"}
        asked = self.model_dump(exclude=unasked if self.instruction else {*unasked, "instruction"})
        return hashlib.sha256(repr(asked).encode()).hexdigest()[:32]

    def query(self) -> JudgeQuery:
        return JudgeQuery(
            question=self.prompt,
            answer=self.completion,
            reference=self.answer,
            answer_type=self.answer_type,
            alternatives=self.alternatives,
            evidence=self.evidence,
            rival=self.rival,
            criteria=tuple(Criterion(c.text, c.points) for c in self.criteria),
            instruction=self.instruction or "",
            key=self.id,
            fresh=self.fresh,
        )


class BatchRequest(Wire):
    """Answers to be judged at once, each on its own."""

    # Not validated here, so that a bad member gets a response of its own.
    requests: list[SkipValidation[JudgeRequest]] = Field(description="In any order.")


class Metadata(Wire):
    """Cost and author of a verdict."""

    latency: float = Field(default=0.0, description="Seconds of judging, without queueing.")
    attempts: int = Field(default=0, description="Attempts of a model; 0 where rules decided.")
    judge: str = Field(default="", description="Name of the judge.")
    prompt_tokens: int = 0
    completion_tokens: int = 0
    raw_replies: tuple[RawReplyBody, ...] | None = Field(
        default=None,
        exclude_if=lambda replies: replies is None,
        description="Of the attempts that got one, in order; only with `include_raw`.",
    )


class JudgeResponse(Wire):
    """A verdict. ``score`` and ``correct`` are null unless ``status`` is "ok"; "invalid" is a
    request that was never judged."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "score": 1.0,
                    "correct": True,
                    "status": "ok",
                    "source": "llm",
                    "request_id": "lesson-1/question-3",
                    "explanation": "The answer states 42, as the reference does.",
                    "metadata": {
                        "latency": 0.412,
                        "attempts": 1,
                        "judge": "gpt-oss-120b",
                        "prompt_tokens": 288,
                        "completion_tokens": 27,
                    },
                }
            ]
        }
    )

    score: float | None = Field(description="In [0, 1]; between two answers 0.5 is a tie.")
    correct: bool | None = Field(
        description="Whether the score counts as right (the better one); null for a tie, too."
    )
    status: Status | Literal["invalid"] = Field(description='"ok", or why there is no score.')
    source: Source | None = Field(description="Author of the verdict; null without one.")
    request_id: str | None = Field(description="Null only where an invalid request has none.")
    explanation: str
    parts: dict[str, float] = Field(
        default_factory=dict,
        description="Components of the score: a rubric's criteria, the aspects.",
    )
    metadata: Metadata


class BatchResponse(Wire):
    """One response for each request, in the same order."""

    responses: list[JudgeResponse]


class ErrorBody(Wire):
    """Body of every response that is not a success."""

    error: str


def response_of(
    verdict: Verdict, request_id: str, seconds: float, raw: bool = False
) -> JudgeResponse:
    """Return a verdict's response, with the models' replies if ``raw``."""
    reason = whole_characters(verdict.reason)
    fields = response_fields(replace(verdict, reason=reason, seconds=round(seconds, 6)), request_id)
    del fields["detailed_scores"]
    if raw:
        fields["metadata"]["raw_replies"] = raw_replies(verdict)
    return JudgeResponse(**fields)


def failed_response(request_id: str, judge: str, seconds: float) -> JudgeResponse:
    """Return the response for a judge that raised; its message stays in the server's log."""
    reason = "the judge raised an error; see the server's log"
    verdict = Verdict(None, None, "llm", "unavailable", reason, judge=judge)
    return response_of(verdict, request_id, seconds).model_copy(update={"source": None})


def invalid_response(member: object, message: str) -> JudgeResponse:
    """Return the response to a member of a batch that is no request."""
    name = member.get("request_id") if isinstance(member, dict) else None
    usable = isinstance(name, str) and name.isprintable() and len(name) <= _LONGEST_ID
    return JudgeResponse(
        score=None,
        correct=None,
        status="invalid",
        source=None,
        request_id=name if usable else None,
        explanation=message,
        metadata=Metadata(),
    )


def read_member(member: object, own_instructions: bool) -> JudgeRequest | JudgeResponse:
    """Return a batch's member as a request, or the response with the reason why it is none."""
    try:
        request = JudgeRequest.model_validate(member)
        is_refused = request.instruction and not own_instructions
        return invalid_response(member, NO_INSTRUCTION) if is_refused else request
    except ValidationError as error:
        errors = error.errors(include_input=False, include_url=False)
        return invalid_response(member, error_message(errors))


def error_message(errors: Sequence[Any]) -> str:
    """Return pydantic's errors in one line, without the input."""
    lines = []
    for error in errors[:_MOST_PROBLEMS]:
        place = ".".join(str(part)[:80] for part in error["loc"] if part != "body")
        message = str(error["msg"]).removeprefix("Value error, ")
        if error["type"] == "model_type":
            message = "a JSON object is expected"
        elif error["type"] == "json_invalid":
            place, message = "", f"the body is not JSON ({error['ctx']['error']})"
        lines.append(f"{place}: {message}" if place else message)
    if len(errors) > _MOST_PROBLEMS:
        lines.append(f"and {len(errors) - _MOST_PROBLEMS} more")
    return whole_characters("; ".join(lines)[:_LONGEST_MESSAGE])
