"""How well a group's ranking agrees with gold, and what it costs, by the way of judging.

Groups are the embedded server's answers (simulated) to the offline problems, eight a problem, which
the gold check has called right or wrong; its judge (simulated) ranks them. Agreement is the share
of pairs of a right and a wrong answer of a group that are in order, ties half; calls, tokens and
seconds are per group.

With ``--pandalm FILE`` (testset-v1.json) and ``--judge`` a model of ``llm.file`` ranks the answers
that people compared in pairs: agreement is with the majority of three annotators, ties left out.

    python benchmarks/group_judging.py [--problems 60]
    python benchmarks/group_judging.py --pandalm FILE --judge NAME --llm FILE [--problems 20]
"""

import argparse
import asyncio
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flowright.config.judge import JudgeSection
from flowright.config.llm import LlmSection, SimulatedSection
from flowright.config.workflow import SandboxSection
from flowright.data.loading import load_problems
from flowright.grading.gold import gold_check
from flowright.judging.build import open_judge
from flowright.judging.prompts import WITHOUT_REFERENCE
from flowright.judging.verdict import JudgeQuery, Verdict, task_query
from flowright.llm.chat import ChatRequest, Message
from flowright.llm.client import ChatClient
from flowright.sandbox import Sandbox
from flowright.simulation.large_models import open_models

SIZE = 8
WAYS: Mapping[str, Mapping[str, Any]] = {
    "right or wrong, each": {},
    "grade of 0 to 4, each": {"ask": "pointwise"},
    "round_robin, both orders": {"group": {"method": "round_robin"}},
    "round_robin, one order": {"group": {"method": "round_robin"}, "both_orders": False},
    "swiss, 3 rounds, both orders": {"group": {"method": "swiss"}},
    "swiss, 3 rounds, one order": {"group": {"method": "swiss"}, "both_orders": False},
    "list, 1 order": {"group": {"method": "list", "orders": 1}},
    "list, 2 orders": {"group": {"method": "list", "orders": 2}},
    "list, 4 orders": {"group": {"method": "list", "orders": 4}},
}
JUDGES: Mapping[str, Mapping[str, Any]] = {
    "good (97 % and 3 % called right)": {},
    "fair (80 % and 30 %)": {"judge_true_positive": 0.8, "judge_false_positive": 0.3},
    "fair, favours places by 0.4": {
        "judge_true_positive": 0.8,
        "judge_false_positive": 0.3,
        "judge_biases": {"position": 0.4},
    },
}


@dataclass(frozen=True, slots=True)
class Group:
    """Queries about answers, and (better, worse) pairs of their numbers."""

    queries: Sequence[JudgeQuery]
    pairs: Sequence[tuple[int, int]]


async def answered(model: ChatClient, problems: int, sandbox: Sandbox) -> list[Group]:
    """Return the groups with right and wrong answers."""
    tasks = [task for task in load_problems("offline", "val") if task.kind != "code"]
    found: list[Group] = []
    for task in tasks:
        prompt = (Message("user", f"{task.problem}\nThink step by step."),)
        asked = (
            model.chat(ChatRequest(prompt, temperature=0.7, max_tokens=500, seed=seed))
            for seed in range(SIZE)
        )
        texts = [reply.text for reply in await asyncio.gather(*asked)]
        golds = [(await gold_check(task, text, sandbox)).correct for text in texts]
        pairs = [(i, j) for i, a in enumerate(golds) for j, b in enumerate(golds) if a and not b]
        queries = [task_query(task, text, f"{task.id}/{i}") for i, text in enumerate(texts)]
        if pairs:
            found.append(Group(queries, pairs))
        if len(found) == problems:
            break
    return found


def compared_by_people(file: Path, problems: int) -> list[Group]:
    """Return PandaLM's requests with three or more answers, and the pairs in which a majority of
    the annotators prefers one."""
    by_request: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in json.loads(file.read_text()):
        by_request.setdefault((row["instruction"], row["input"]), []).append(row)
    found: list[Group] = []
    for (instruction, text), rows in by_request.items():
        question = "\n\n".join(filter(None, (instruction, text)))
        answers = [*dict.fromkeys(row[f"response{side}"] for row in rows for side in (1, 2))]
        pairs: list[tuple[int, int]] = []
        for row in rows:
            votes = Counter(int(row[f"annotator{n}"]) for n in (1, 2, 3))
            side, count = votes.most_common(1)[0]
            if side and count > 1 and row["response1"] != row["response2"]:
                places = [answers.index(row[f"response{n}"]) for n in (side, 3 - side)]
                pairs.append((places[0], places[1]))
        keys = (f"{len(found)}/{n}" for n in range(len(answers)))
        queries = [
            JudgeQuery(question, answer, "", key=key)
            for answer, key in zip(answers, keys, strict=True)
        ]
        if len(answers) > 2 and pairs:
            found.append(Group(queries, pairs))
    return found[:problems]


async def measured(
    groups: Sequence[Group], way: Mapping[str, Any], clients: Mapping[str, ChatClient], name: str
) -> str:
    section = JudgeSection.model_validate({"model": name, **way})
    async with open_judge(section, name, clients) as opened:

        async def judged(group: Group) -> Sequence[Verdict | None]:
            if opened.ranking is not None:
                return await opened.ranking.rank(group.queries)
            return await asyncio.gather(*(opened.judge.judge(query) for query in group.queries))

        began = time.monotonic()
        verdicts = await asyncio.gather(*(judged(group) for group in groups))
        seconds = (time.monotonic() - began) / len(groups)
    outcomes: list[float] = []
    pairs = 0
    for group, some in zip(groups, verdicts, strict=True):
        scores = [None if verdict is None else verdict.score for verdict in some]
        for better, worse in group.pairs:
            pairs += 1
            first, second = scores[better], scores[worse]
            if first is not None and second is not None:
                outcomes.append(0.5 if abs(first - second) < 1e-9 else float(first > second))
    known = [verdict for some in verdicts for verdict in some if verdict is not None]
    calls = sum(verdict.usage.calls for verdict in known) / len(groups)
    tokens = sum(verdict.usage.tokens for verdict in known) / len(groups)
    share = f"{sum(outcomes) / len(outcomes):9.1%}" if outcomes else f"{'none':>9}"
    return f"{share} {len(outcomes):5,} of {pairs:5,} {calls:7.1f} {tokens:9,.0f} {seconds:8.2f}"


HEAD = f"{'':30}{'agreement':>9} {'pairs':>14} {'calls':>7} {'tokens':>9} {'seconds':>8}"


async def simulated(problems: int) -> None:
    tasks = load_problems("offline", "val")
    llm, sandboxes = LlmSection(max_concurrency=32), SandboxSection()
    async with Sandbox(workers=1, allow_weaker=True) as sandbox:
        for judge, settings in JUDGES.items():
            section = SimulatedSection.model_validate({"latency_ms": 20, **settings})
            async with open_models(["simulated"], llm, section, sandboxes, tasks) as models:
                client = models.clients["simulated"]
                groups = await answered(client, problems, sandbox)
                print(
                    f"\nSIMULATED: {len(groups)} groups of {SIZE} answers; judge: {judge}\n{HEAD}"
                )
                for name, way in WAYS.items():
                    line = await measured(groups, way, models.clients, "simulated")
                    print(f"{name:30}{line}", flush=True)


async def on_real_pairs(file: Path, judge: str, llm_file: Path, problems: int) -> None:
    llm = LlmSection(file=llm_file)
    groups = compared_by_people(file, problems)
    answers = sum(len(group.queries) for group in groups)
    print(f"{judge}: {len(groups)} requests of PandaLM, {answers} answers\n{HEAD}")
    async with open_models([judge], llm, SimulatedSection(), None, ()) as models:
        if lines := await models.check():
            raise SystemExit("\n".join(lines))
        without = [
            Group([_worded(query, "pointwise") for query in group.queries], group.pairs)
            for group in groups
        ]
        for name, way in WAYS.items():
            if not way:
                continue  # right or wrong: nothing to compare with
            some = without if "ask" in way else groups
            line = await measured(some, {**way, "max_tokens": 300}, models.clients, judge)
            print(f"{name:30}{line}", flush=True)


def _worded(query: JudgeQuery, ask: str) -> JudgeQuery:
    return replace(query, instruction=WITHOUT_REFERENCE[ask])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--problems", type=int, default=60)
    parser.add_argument("--pandalm", type=Path)
    parser.add_argument("--judge", default="")
    parser.add_argument("--llm", type=Path, default=Path("config/aflow_llm.yaml"))
    options = parser.parse_args()
    if options.pandalm is None:
        asyncio.run(simulated(options.problems))
    else:
        asyncio.run(on_real_pairs(options.pandalm, options.judge, options.llm, options.problems))


if __name__ == "__main__":
    main()
