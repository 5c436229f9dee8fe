"""Commands on instruction following: measure a model, generate responses, score them."""

import argparse
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from flowright.core import arguments as add
from flowright.core.command_line import say, settings_of

if TYPE_CHECKING:
    from flowright.evaluation.responses.score_responses import Reward

LLM_FILE = Path("config/aflow_llm.yaml")
JUDGE_FILE = Path("config/judge_server.yaml")

REWARDS = ("rubric", "verif", "constraints")
SCORE_KEYS = {
    "data.prompt_key": "prompt",
    "data.response_key": "responses",
    "data.data_source_key": "source",
    "data.reward_model_key": "reward_model",
}


def add_evaluate_options(parser: argparse.ArgumentParser) -> None:
    from flowright.evaluation.responses.response_options import (
        add_drawing_options,
        add_model_options,
    )

    add.text(parser, "--benchmark", "ifeval, ifbench, or both with a comma; or healthbench",
             "NAMES", required=True)  # fmt: skip
    add.path(parser, "--responses", "answers that were given: rows prompt, response; no model is "
             "asked", "FILE", nargs="+")  # fmt: skip
    add.path(parser, "--data", "the benchmark's prompts", "FILE")
    add.path(parser, "--folder", "where they are without --data (default: data/raw)", "DIR",
             default=Path("data/raw"))  # fmt: skip
    add.path(parser, "--verdicts", "others' verdicts on these answers, to compare with", "FILE",
             nargs="+", default=())  # fmt: skip
    add.path(parser, "--json", "the record, with every verdict", "OUT")
    add.path(parser, "--save-responses", "a model's answers (default: "
             "outputs/instructions/MODEL-HASH.jsonl)", "FILE")  # fmt: skip
    add.count(parser, "--limit", "the first N prompts (all)")
    add.flag(parser, "--overwrite", "ask the model again for all")
    add.text(parser, "--judge", "of healthbench: a model of --llm-file, or simulated", "NAME")
    add_model_options(parser, LLM_FILE, batch_size=64)
    add_drawing_options(parser, samples=None, temperature=0.0, top_p=1.0, top_k=-1, max_tokens=1280)


def evaluate(options: argparse.Namespace) -> int:
    """Measure how well answers follow instructions that a program can check.

    flowright instructions evaluate --benchmark ifeval --responses answers.jsonl
    flowright instructions evaluate --benchmark ifeval,ifbench --model smollm2-135m
    flowright instructions evaluate --benchmark ifeval --server NAME --limit 20
    flowright instructions evaluate --benchmark ifbench --data IFBench_test.jsonl \\
        --responses answers.jsonl --verdicts theirs.jsonl --json scores.json
    flowright instructions evaluate --benchmark healthbench --data healthbench.jsonl \\
        --responses answers.jsonl --judge NAME

    A row of --responses has a prompt and a response. Without the option, a model is asked, greedily
    by default; an interrupted command resumes. docs/instructions.md describes the measures and the
    optional packages.
    """
    from rich.console import Console

    console = Console()
    if options.benchmark == "healthbench":
        _evaluate_healthbench(options, console)
    else:
        _evaluate_instructions(options, console)
    if options.json is not None:
        say(console, str(options.json))
    return 0


def _evaluate_instructions(options: argparse.Namespace, console: Any) -> None:
    from flowright.criteria.constraints.checkers import read_answers
    from flowright.evaluation.responses.instruction_benchmarks import (
        open_prompts,
        record_place,
        score_instructions,
        write_record,
    )
    from flowright.evaluation.responses.response_reports import instructions_report
    from flowright.viewer.rendering.report import report_text

    sets = open_prompts(options.benchmark, options.folder, options.data, options.limit)
    generation: dict[str, Any] = {}
    if options.responses is not None:
        answers = read_answers(options.responses)
    else:
        answers, generation = _ask(options, sets, console)
    record = score_instructions(sets, answers, options.verdicts) | {"generation": generation}
    if options.json is not None:
        options.json = record_place(options.json, generation)
        write_record(record, options.json)
    console.print(report_text(instructions_report(record)))


def _evaluate_healthbench(options: argparse.Namespace, console: Any) -> None:
    import uvloop
    from rich.console import Console

    from flowright.core.errors import UserError
    from flowright.evaluation.responses.instruction_benchmarks import score_healthbench
    from flowright.evaluation.responses.response_options import progress_bar
    from flowright.evaluation.responses.response_reports import scores_report
    from flowright.evaluation.responses.score_responses import GraderSettings
    from flowright.viewer.rendering.report import report_text

    if options.responses is None:
        raise UserError(
            "--benchmark healthbench: --responses FILE has the answers; "
            "python scripts/generate_responses.py --data-path FILE asks a model for them"
        )
    settings = GraderSettings(
        "rubric",
        options.judge,
        JUDGE_FILE,
        [f"llm.file={options.llm_file}"],
        calls="each",  # as the benchmark's own program does
        grades_empty=True,
    )
    data = options.data or options.folder / "rubrics/healthbench_val.parquet"
    out = options.json or Path("outputs/instructions/healthbench.json")
    with progress_bar(Console(stderr=True), "healthbench") as progress:
        record = uvloop.run(
            score_healthbench(
                settings, data, options.responses, out, options.limit, options.overwrite, progress
            )
        )
    console.print(report_text(scores_report(record)))


def _ask(
    options: argparse.Namespace, sets: Sequence[Any], console: Any
) -> tuple[dict[str, str], dict[str, Any]]:
    """Return a model's answers to the benchmarks by prompt, and their settings for the record."""
    import uvloop
    from rich.console import Console

    from flowright.evaluation.responses.instruction_benchmarks import answer_benchmark
    from flowright.evaluation.responses.response_options import (
        draw_settings,
        model_name,
        progress_bar,
    )
    from flowright.policy.base_models import model_id

    errors = Console(stderr=True)
    named = model_name(options, partial(say, errors))
    settings = draw_settings(options)
    called = Path(named.model or named.server or "served").name
    if named.model is not None and Path(named.model).is_dir():  # others may have its name
        called = f"{called}-{model_id(named.model)}"
    path = options.save_responses or Path(f"outputs/instructions/{called}.jsonl")
    several = options.save_responses is None or len(sets) > 1
    answers: dict[str, str] = {}
    generation: dict[str, Any] = {}
    for one in sets:
        out = path.with_name(f"{path.stem}.{one.benchmark}{path.suffix}") if several else path
        with progress_bar(errors, one.benchmark) as progress:
            found = uvloop.run(
                answer_benchmark(named, settings, one, out, options.overwrite, progress)
            )
        answers |= found.answers
        generation[one.benchmark] = dict(found.about)
        for line in (*found.generated.lines(), str(out)):
            say(console, line)
    return answers, generation


def add_generate_options(parser: argparse.ArgumentParser) -> None:
    from flowright.evaluation.responses.response_options import (
        add_drawing_options,
        add_model_options,
    )

    add.path(parser, "--data-path", "rows with prompts", "FILE", dest="data", required=True)
    add.path(parser, "--output-path", "a .parquet file", "FILE", dest="out", required=True)
    add.text(parser, "--prompt-key", "texts or lists of messages", "COLUMN", default="prompt")
    add.text(parser, "--response-key", "what is written", "COLUMN", default="responses")
    add.whole(parser, "--start", "the first row (0)", "ROW", default=0)
    add.count(parser, "--limit", "the first N rows (all)")
    add.flag(parser, "--overwrite", "start again")
    add_drawing_options(parser, samples=8, temperature=0.7, top_p=0.8, top_k=20, max_tokens=4096)
    add_model_options(parser, LLM_FILE, batch_size=8)


def generate(options: argparse.Namespace) -> int:
    """Generate responses to the prompts of a parquet or JSON Lines file, into a parquet file.

    flowright instructions generate --model smollm2-135m --data-path val.parquet \\
        --output-path out.parquet --n-samples 8
    flowright instructions generate --server gpt-oss-120b --data-path val.parquet \\
        --output-path out.parquet
    VLLM_BASE_URL=http://a:8000/v1,http://b:8000/v1 VLLM_MODEL=Qwen/Qwen3-8B \\
        flowright instructions generate --data-path val.parquet --output-path out.parquet

    An interrupted command resumes. docs/instructions.md describes the columns.
    """
    import uvloop
    from rich.console import Console

    from flowright.evaluation.responses.generate import GenerationRequest, generate
    from flowright.evaluation.responses.response_options import (
        draw_settings,
        model_name,
        progress_bar,
    )

    console, errors = Console(), Console(stderr=True)
    named = model_name(options, partial(say, errors))
    request = settings_of(options, GenerationRequest, named=named, settings=draw_settings(options))
    with progress_bar(errors, "responses") as progress:
        done = uvloop.run(generate(request, progress))
    for line in done.lines():
        say(console, line)
    say(console, str(options.out))
    return 0


def add_score_options(parser: argparse.ArgumentParser) -> None:
    add.choice(parser, "--reward", REWARDS, "what a row is graded by")
    add.text(parser, "--judge", "a model of the LLM file, or simulated", "NAME")
    add.choice(parser, "--calls", ("together", "each", "brackets"), "all criteria in one call, "
               "each in its own, or VerIF's [[1]] (together)", default="together")  # fmt: skip
    add.choice(parser, "--rules", ("run", "skip", "ignore"), "of verif: run them, give them to the "
               "judge (VERIF_SKIP_RULES=1), or leave them out (VERIF_IGNORE_RULES=1); default: as "
               "these say, else run")  # fmt: skip
    add.path(parser, "--config", "its judge, llm and simulated sections are the judge's", "FILE",
             default=JUDGE_FILE)  # fmt: skip
    add.path(parser, "--json", "the record (default: beside the data)", "OUT")
    add.flag(parser, "--overwrite", "start again")
    add.text(parser, "keys", "data.path=FILE and others", "key=value", nargs="+")


def score(options: argparse.Namespace) -> int:
    """Score the responses of a file: per data_source, the mean over rows of the mean over samples.

    flowright instructions score data.path=out.parquet --reward rubric --judge gpt-oss-120b
    flowright instructions score data.path=out.parquet --reward verif --judge gpt-oss-120b
    flowright instructions score data.path=ifeval.parquet --reward constraints

    Keys: data.path, data.prompt_key, data.response_key, data.data_source_key,
    data.reward_model_key; and those of --config, such as judge.max_tokens=4096. With
    custom_reward_function.path=health_bench/scaleai_batch_reward_fn.py, as for verl's main_eval,
    the reward is rubric. An interrupted command resumes. docs/instructions.md describes the scores.
    """
    import uvloop
    from rich.console import Console

    from flowright.environments.instructions.config import rules_of_environment
    from flowright.evaluation.responses.response_options import progress_bar
    from flowright.evaluation.responses.response_reports import scores_report
    from flowright.evaluation.responses.score_responses import (
        GraderSettings,
        ResponseColumns,
        ScoreRequest,
        score_file,
    )
    from flowright.viewer.rendering.report import report_text

    console, errors = Console(), Console(stderr=True)
    given, overrides, reward = _split_keys(options.keys, options.reward)
    data = Path(given.pop("data.path"))
    variables = os.environ if reward == "verif" else {}
    judge = options.judge
    if judge is None and reward != "constraints" and os.environ.get("VLLM_BASE_URL"):
        judge = "instructions-judge"
        say(errors, f"note: --judge {judge}, the servers of VLLM_BASE_URL")
    request = ScoreRequest(
        graders=GraderSettings(
            reward,
            judge,
            options.config,
            overrides,
            options.calls,
            options.rules or rules_of_environment(variables),
        ),
        data=data,
        out=options.json or data.with_name(f"{data.stem}.scores.json"),
        columns=ResponseColumns(**{SCORE_KEYS[key]: value for key, value in given.items()}),
        overwrite=options.overwrite,
    )
    with progress_bar(errors, "graded") as progress:
        record = uvloop.run(score_file(request, progress))
    console.print(report_text(scores_report(record)))
    say(console, str(request.out))
    return 0


def _split_keys(
    given: Sequence[str], reward: str | None
) -> "tuple[dict[str, str], list[str], Reward]":
    """The keys of the data, those of the judge, and the reward. Raises UserError."""
    from flowright.core.errors import UserError
    from flowright.core.plugins import suggest

    ours: dict[str, str] = {}
    others: list[str] = []
    problems: list[str] = []
    for one in given:
        key, _, value = one.partition("=")
        if key.startswith("custom_reward_function"):
            is_known = Path(value).name == "scaleai_batch_reward_fn.py" or value == "compute_score"
            if is_known and key.endswith(".path"):
                reward = reward or "rubric"
            elif not is_known:
                problems.append(f"{one}: not run; --reward, rubric, verif or constraints, grades")
        elif not key.startswith("data."):
            others.append(one)
        elif key not in ("data.path", *SCORE_KEYS):
            known = ["data.path", *SCORE_KEYS]
            problems.append(f"{key}: no such key{suggest(key, known)} ({', '.join(known)})")
        else:
            ours[key] = value
    if not ours.get("data.path"):
        problems.append("data.path=FILE: which file is scored?")
    if reward is None and not problems:
        problems.append(f"--reward: one of {', '.join(REWARDS)}")
    if problems:
        raise UserError(*problems)
    return ours, others, cast("Reward", reward)
