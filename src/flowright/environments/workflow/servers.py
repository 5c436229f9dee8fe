"""The large models and the judge of a workflow run: which they are, and the dry run's checks that
they are there, that budgets fit their context, and that each answers a small request, because some
errors show in no list of models."""

from collections.abc import Mapping
from itertools import product
from typing import Any

from flowright.config.llm import SIMULATED, ModelEntry, SimulatedModelSection
from flowright.config.loading import load_entries
from flowright.config.root import Config
from flowright.config.workflow import WorkflowSection
from flowright.core.errors import ConfigError, FailureError, UserError
from flowright.judging.attempts import FORMS
from flowright.judging.build import open_judge
from flowright.judging.llm_judge import Questions
from flowright.judging.prompts import wording_hash
from flowright.judging.verdict import JudgeQuery
from flowright.llm.chat import ChatModel, ChatRequest, RequestRefused
from flowright.llm.client import ChatClient
from flowright.llm.context import CONTROL
from flowright.sandbox import Sandbox
from flowright.simulation.large_models import open_models
from flowright.workflows.executor import Executor
from flowright.workflows.pool import ModelPool

_OPERATION = frozenset(
    {
        "cache_size",
        "breaker_threshold",
        "breaker_seconds",
        "min_agreement",
        "low_agreement",
        "alarm",
    }
)
"""Keys of ``judge`` that change no verdict."""


def models_that_judge(config: Config) -> frozenset[str]:
    """The names of the large models that are asked; none where a service or rules decide alone."""
    first = {config.judge_model} if config.judge_model is not None else set[str]()
    return frozenset({*first, *config.judge.further_models})


def settings_of_judge(config: Config) -> Mapping[str, Any]:
    """All that decides a verdict: the section, the wording, and which models are meant; of the
    embedded server what is planted in it. Addresses and keys are no part of it. Raises ConfigError
    for names that ``llm.file`` lacks."""
    names, section = models_that_judge(config), config.judge
    entries = load_entries(config.llm.file, names, config.simulated)
    asked = {"model_name", "temperature", "top_p", "max_tokens", "reasoning_effort"}
    found: dict[str, Any] = {
        "judge": section.model_dump(mode="json", exclude={*_OPERATION, "model", "service"}),
        "model": config.judge_model,
        "models": {name: entry.model_dump(include=asked) for name, entry in entries.items()},
    }
    if section.service is not None:
        found["service"] = section.service.judge_url
    if section.mode != "rules":
        found["wording"] = wording_hash(section)
    if SIMULATED in names:
        found["simulated"] = config.simulated.model_dump(mode="json")
        found["tasks"] = [config.train_dataset, config.val_dataset]
    return found


FEW_TOKENS = 16
"""Tokens of a trial reply."""
TRIAL_SECONDS = 60.0
TRIAL = JudgeQuery("What is 6 * 7?", "42", "42", "number", key="trial")


def make_pool(config: Config) -> ModelPool | None:
    """Return the models that programs choose from; None where there is one. Raises ConfigError for
    names that ``llm.file`` lacks, for models without a price where costs count or others have one,
    and where real models would be judged by the embedded server unasked."""
    names = config.executor.models
    if not names:
        return None
    played = config.simulated.played(names)
    known: dict[str, ModelEntry | SimulatedModelSection] = {
        name: config.simulated.models.get(name) or SimulatedModelSection() for name in played
    }
    known |= load_entries(config.llm.file, names, config.simulated)
    unpriced = [name for name in names if known[name].price is None]
    if unpriced and (config.reward.cost_weight or len(unpriced) < len(names)):
        why = "reward.cost_weight counts money" if config.reward.cost_weight else "others have one"
        raise ConfigError(
            *(
                f"executor.models: {name} has no price, and {why}; give it "
                "price: {input: ..., output: ...} in "
                + (f"simulated.models.{name}" if name in played else str(config.llm.file))
                for name in unpriced
            )
        )
    if not played and config.judge.model is None and config.judge_model == SIMULATED:
        raise ConfigError("executor.models: name judge.model, which is no part of the pool")
    notes = {name: known[name].note for name in names}
    prices = {name: known[name].price for name in names}
    return ModelPool(config.executor, notes, config.seed, prices)


def open_executor(
    config: Config,
    clients: Mapping[str, ChatClient],
    sandbox: Sandbox,
    own: WorkflowSection,
    pool: ModelPool | None,
) -> Executor:
    """Return the executor of a run, not yet entered, with the model or models that it asks."""
    if pool is None:
        return Executor(clients[config.aflow_executor_model], sandbox, own, config.executor)
    models = {name: clients[name].as_role(f"executor/{name}") for name in config.executor.models}
    return Executor(models, sandbox, own, config.executor, pool)


def budgets(config: Config) -> dict[str, dict[str, int]]:
    """By model, the tokens of a reply by the keys that set them."""
    found: dict[str, dict[str, int]] = {name: {} for name in config.models}
    for name in config.executor_models:
        found[name]["executor.max_tokens"] = config.executor.max_tokens
    for name in _judges(config):
        found[name]["judge.max_tokens"] = config.judge.max_tokens
    return found


def _judges(config: Config) -> list[str]:
    first = [config.judge_model] if config.judge_model is not None else []
    return list(dict.fromkeys([*first, *config.judge.further_models]))


async def check_servers(config: Config) -> str:
    """Asks all servers but the embedded one, which is started with the run: a line about what is
    where. Raises UserError with a line for each that cannot be used."""
    played = config.simulated.played(config.models)
    names = config.models - played
    async with open_models(names, config.llm, config.simulated, None, ()) as models:
        problems = await models.check(budgets(config))
        shown = {
            name: f"{name} at {', '.join(client.entry.base_urls)}"
            + " (simulated)" * client.simulated
            for name, client in models.clients.items()
        }
        if not problems:
            problems = await _try_all(config, models.clients, shown)
    lines = list(shown.values())
    if config.judge.service is not None:
        result, more = await _try_service(config)
        lines, problems = [*lines, result], [*problems, *more]
    if problems:
        raise UserError(*problems)
    if played:
        shown_names = ", ".join(sorted(played))
        lines.append(f"{shown_names}: started with the run on a free loopback port")
    return "; ".join(lines)


async def _try_all(
    config: Config, clients: Mapping[str, ChatModel], shown: dict[str, str]
) -> list[str]:
    """The problems of one request to each; other findings go into ``shown``."""
    problems: list[str] = []
    executor = config.executor
    key = "executor.models" if executor.models else "aflow_executor_model"
    request = ChatRequest(
        CONTROL,
        temperature=executor.temperature,
        max_tokens=min(FEW_TOKENS, executor.max_tokens),
        reasoning_effort=executor.reasoning_effort,
    )
    for name in config.executor_models:
        if name in clients:
            try:
                await clients[name].chat(request, TRIAL_SECONDS)
            except FailureError as error:
                problems.append(f"{key}: {error.failure.message}")
    for name in _judges(config):
        if name in clients:
            try:
                shown[name] += await _try_judge(config, clients[name])
            except FailureError as error:
                problems.append(f"judge: {error.failure.message}")
    return problems


async def _try_judge(config: Config, model: ChatModel) -> str:
    """Ask as the judge asks, in the strictest form that the server serves, and say where that is
    not the first. Raises FailureError."""
    section = config.judge
    question = Questions(section).about(TRIAL)[0]
    for form, seed in product(FORMS, range(2)):  # one refusal may be about the reply
        request = ChatRequest(
            question.messages(form),
            temperature=section.temperature,
            max_tokens=min(FEW_TOKENS, section.max_tokens),
            seed=seed,
            response_format=question.response_format(form),
            reasoning_effort=section.reasoning_effort,
        )
        try:
            await model.chat(request, TRIAL_SECONDS)
        except RequestRefused:
            if form == FORMS[-1] and seed:
                raise
            continue
        return "" if form == FORMS[0] else f" (judges by {form}: it refuses {FORMS[0]})"
    raise AssertionError("FORMS is not empty")


async def _try_service(config: Config) -> tuple[str, list[str]]:
    """A line about the judge's service, and its problems: by its health, and by one question."""
    assert config.judge.service is not None
    url = config.judge.service.judge_url
    once = {"max_retries": 0, "deadline": TRIAL_SECONDS, "timeout": TRIAL_SECONDS}
    service = config.judge.service.model_copy(update=once)
    alone = config.judge.model_copy(update={"service": service, "panel": (), "weights": ()})
    async with open_judge(alone, None, {}) as judge:
        problems = await judge.check()
        stands_in = " (simulated)" if judge.simulated else ""
        if not problems and judge.service is not None:
            verdict = await judge.service.judge(TRIAL)
            if verdict.status in ("unavailable", "refused", "timeout", "overloaded"):
                problems = [
                    f"judge.service: {url} gave no verdict on a trial question ({verdict.status}: "
                    f"{verdict.reason}); judge_url is that of a judge service, a model's server is "
                    "an entry of llm.file"
                ]
    return f"judge service at {url}{stands_in}", problems
