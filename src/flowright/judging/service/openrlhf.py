"""OpenRLHF's remote reward model as an endpoint of the judge service, for ``--remote_rm_url``.

OpenRLHF's client sends ``{"query": [...], "prompts": [...], "labels": [...]}``, one sample a
request, repeats a failed one four times at once and then continues without a reward. So an
overload, and a judge that is down, are waited for here. A sample without a verdict gets the mean of
its group, marked in ``extra_logs`` (:class:`flowright.judging.reward.patience.GroupMeans`), or 503
if no sample has one.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import Body, FastAPI, Request
from fastapi.exceptions import HTTPException
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flowright.core.errors import RunPaused
from flowright.core.off_loop import in_thread
from flowright.judging.payloads import whole_characters
from flowright.judging.reward.calls import query_of
from flowright.judging.reward.patience import GroupMeans, ask_patiently
from flowright.judging.service.bodies import JudgeRequest, JudgeResponse, error_message

PATH = "/openrlhf"

_PATIENCE = 150.0  # seconds to wait for the judge; the client gives up after 180
_PAUSE = 0.5
_LONGEST_TOKEN = 48  # characters of a control token at the end of an answer
_ENDS = ("</s>", "<eos>", "<end_of_turn>", "<pad>")

Judging = Callable[[Sequence[JudgeRequest], Request], Awaitable[list[JudgeResponse]]]
"""Judges all questions of an HTTP request; raises HTTPException(429) without room."""


class RewardRequest(BaseModel):
    """OpenRLHF's request. Further keys of other versions are ignored."""

    model_config = ConfigDict(frozen=True)

    query: list[str] = Field(description="Prompt and completion, as the tokenizer decodes them.")
    prompts: list[str] = Field(description="The prompts alone.")
    labels: list[Any] = Field(description="The references (`--label_key`).")


class RewardResponse(BaseModel):
    """One number for each query."""

    model_config = ConfigDict(frozen=True)

    rewards: list[float]
    scores: list[float] = Field(description="The same, for dynamic filtering.")
    extra_logs: dict[str, list[float]] = Field(
        description="`unscored`: 1 where the reward is the group's mean and no verdict."
    )


def add_openrlhf(
    app: FastAPI, judging: Judging, responses: dict[int | str, Any], guarded: Sequence[Any]
) -> None:
    """Add the endpoint to the service's app."""
    means = GroupMeans()

    @app.post(PATH, responses=responses, dependencies=guarded)
    async def openrlhf(asked: Annotated[RewardRequest, Body()], request: Request) -> RewardResponse:
        """Judge completions for OpenRLHF's `--remote_rm_url`."""
        questions = await in_thread(lambda: _questions(asked))
        verdicts = await ask_patiently(
            partial(_with_room, judging, request, time.monotonic() + _PATIENCE),
            questions,
            lambda verdict: verdict.status,
            _PATIENCE,
        )
        for prompt, verdict in zip(asked.prompts, verdicts, strict=True):
            means.note(prompt, verdict.score, f"{verdict.status}: {verdict.explanation}")
        try:
            rewards = [
                means.mean(prompt) if verdict.score is None else verdict.score
                for prompt, verdict in zip(asked.prompts, verdicts, strict=True)
            ]
        except RunPaused as error:
            raise HTTPException(503, str(error), {"Retry-After": "1"}) from None
        unscored = [float(verdict.score is None) for verdict in verdicts]
        return RewardResponse(rewards=rewards, scores=rewards, extra_logs={"unscored": unscored})


def completion_of(query: str, prompt: str) -> str:
    """Return the completion after its prompt, without control tokens at its end. White space may
    differ after decoding. Raises ValueError if the query does not contain the prompt."""
    start = query.find(prompt)
    if start >= 0:
        return _without_end(query[start + len(prompt) :])
    places = [i for i, character in enumerate(query) if not character.isspace()]
    wanted = "".join(prompt.split())
    start = "".join(query[i] for i in places).find(wanted)
    if start < 0:
        raise ValueError("the query does not hold its prompt")
    end = start + len(wanted)
    return _without_end(query[places[end] :] if end < len(places) else "")


def _without_end(text: str) -> str:
    end = len(text)
    while True:
        while end and text[end - 1].isspace():
            end -= 1
        begins = text.rfind("<|", max(0, end - _LONGEST_TOKEN), end)
        token = next((token for token in _ENDS if text.endswith(token, 0, end)), "")
        if begins >= 0 and text.endswith("|>", 0, end) and " " not in text[begins:end]:
            token = text[begins:end]
        if not token:
            return text[:end]
        end -= len(token)


def _questions(request: RewardRequest) -> list[JudgeRequest]:
    """Return the questions; one without a label is judged without a reference. Raises HTTPException
    for lists of different lengths, and for samples that can never be scored: the run's settings
    need a correction."""
    if not len(request.query) == len(request.prompts) == len(request.labels):
        raise HTTPException(422, "query, prompts and labels must be of one length")
    questions: list[JudgeRequest] = []
    for number, (query, prompt, label) in enumerate(
        zip(request.query, request.prompts, request.labels, strict=True)
    ):
        try:
            completion = completion_of(query, prompt)
            asked = query_of({"prompt": prompt, "completion": completion, "answer": label})
            question = JudgeRequest(
                prompt=whole_characters(prompt),
                completion=whole_characters(completion),
                answer=asked.reference,
                alternatives=asked.alternatives,
            )
        except ValidationError as error:
            raise HTTPException(422, error_message(error.errors(include_input=False))) from None
        except ValueError as error:
            raise HTTPException(422, f"sample {number}: {error}") from None
        questions.append(question)
    return questions


async def _with_room(
    judging: Judging, request: Request, ends: float, questions: Sequence[JudgeRequest]
) -> list[JudgeResponse]:
    while True:
        try:
            return await judging(questions, request)
        except HTTPException as error:
            if error.status_code != 429 or time.monotonic() > ends:
                raise
        await asyncio.sleep(_PAUSE)
