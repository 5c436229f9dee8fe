"""Episodes of several turns: what is sampled is what is trained, through the whole loop."""

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from tiny_policy import same, tiny_policy
from toy_run import Killed, Outcome, Toy, Wrapped, configured, train

from flowright.config.grpo import GrpoSection, TurnsSection
from flowright.environments.episode import Episode, Observation
from flowright.environments.rollout import Rollout
from flowright.grpo.teacher import LocalTeacher
from flowright.policy.local import LocalSampler
from flowright.policy.sampling import Sample, Sampler, Sampling
from flowright.runs.run_files import read_rollouts

KEEPS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
REWRITES = KEEPS.replace("{{ m.content }}", "{{ m.content | upper }}")
"""Each context begins with the group's prompt, and has other completions than were sampled."""
COUNTS = "{{ messages | length }}" + REWRITES
"""No later context begins with the group's prompt."""
QUIET = {"every": 0}


@dataclass
class Talk(Toy):
    """Answers every turn with the length of what was written; ends early at some. ``asked`` is
    called with each episode before."""

    turns: int = 3
    config: Any = field(default_factory=configured)
    asked: Callable[[Episode], Any] = lambda episode: None
    answers_at_once: ClassVar[bool] = True

    @property
    def max_turns(self) -> int:
        return self.turns

    async def respond(self, episode: Episode) -> Observation | None:
        self.asked(episode)
        count = len(episode.sample.text)
        if episode.turns[-1].sample.token_ids[0] % 5 == 0:
            return None
        memory = {"counts": [*(episode.memory or {"counts": []})["counts"], count]}
        return Observation(
            f"{count} characters", memory=memory, reward=0.1, state=str(count % 2), failed=count > 4
        )


@dataclass
class Slow(Talk):
    """Answers after a time: ``seconds`` of the episode's key."""

    seconds: Callable[[str], float] = lambda key: 0.0
    answers_at_once: ClassVar[bool] = False

    async def respond(self, episode: Episode) -> Observation | None:
        await asyncio.sleep(self.seconds(episode.key))
        return await super().respond(episode)


def rows_of(done: Outcome) -> list[dict[str, float]]:
    return [row for row in done.metrics if "turns/mean" in row]


@pytest.mark.parametrize("template", [KEEPS, REWRITES, COUNTS])
async def test_an_environment_of_several_turns_trains(tmp_path: Path, template: str) -> None:
    done = await train(tmp_path / "run", Talk(), configured({"steps": 2}), template=template)
    rows = rows_of(done)
    assert len(rows) == 2
    for row in rows:
        assert row["tokens/trained_as_sampled"] == 1.0
        assert 1 < row["turns/mean"] < 3 and row["turns/max"] == 3
        assert row["turns/stop/done"] + row["turns/stop/max_turns"] == 1
        assert ("tokens/observation_mean" in row) is (template == KEEPS)
        for turn in (1, 2, 3):
            assert row[f"policy/logprob_gap/turn_{turn}"] < 1e-4


ONCE = {"epochs": 1, "minibatches": 1}
FEATURES: list[tuple[dict[str, Any], str, int]] = [
    ({"loss": "gsspo", "turns": TurnsSection(credit="gigpo", mask_failed=True)}, KEEPS, 1),
    ({"turns": TurnsSection(credit="discounted", discount=0.5), "kl_on": "signal"}, REWRITES, 0),
    ({"kl_in": "reward", "kl_coefficient": 0.1, "overlong": "soft", **ONCE}, COUNTS, 1),
    ({"overlong": "filter", "resample_rounds": 2, "loss": "gspo", **ONCE}, KEEPS, 0),
    ({"loss": "kl_cov", "top_entropy": 0.5, **ONCE}, COUNTS, 0),
]


@pytest.mark.parametrize(("options", "template", "staleness"), FEATURES)
async def test_a_killed_run_repeats_the_uninterrupted_one(
    tmp_path: Path, options: dict[str, Any], template: str, staleness: int
) -> None:
    """Killed while an answer is made, some attempts of the group being whole: these are played
    again from their tasks."""
    steps, run = 2 + staleness, {"keep_logprobs": True, "checkpoint_every": 1}
    config = configured({"steps": steps, **options}, run, QUIET, max_staleness=staleness)
    key, seen = f"1/{steps}/1/2", list[Episode]()
    whole = await train(tmp_path / "whole", Talk(asked=seen.append), config, template=template)
    last = max(len(episode.turns) for episode in seen if episode.key == key)

    def kill(episode: Episode) -> None:
        if episode.key == key and len(episode.turns) == last:
            raise Killed

    broken = Talk(asked=kill)
    await train(tmp_path / "run", broken, config, raises=BaseException, template=template)
    resumed = await train(tmp_path / "run", Talk(), config, resume=True, template=template)
    assert resumed.metrics == whole.metrics
    assert same(resumed.weights, whole.weights)
    for step in range(1, steps + 1):
        one, other = (list(read_rollouts(tmp_path / run, step)) for run in ("run", "whole"))
        assert one == other


async def test_samples_of_several_turns_wait_in_a_checkpoint(tmp_path: Path) -> None:
    def kill(version: int) -> None:
        if version == 3:
            raise Killed

    config = configured({"steps": 4, **ONCE}, evaluation=QUIET, max_staleness=1)
    whole = await train(tmp_path / "whole", Talk(), config)
    killed: Any = {"sampler": lambda local: Wrapped(local, refreshed=kill), "raises": Killed}
    await train(tmp_path / "run", Talk(), config, **killed)
    asked: list[str] = []
    again = Talk(asked=lambda episode: asked.append(episode.key.split("/")[1]))
    resumed = await train(tmp_path / "run", again, config, resume=True)
    assert "3" not in asked and "4" in asked, "what had waited is not played again"
    assert resumed.metrics == whole.metrics
    assert same(resumed.weights, whole.weights)
    # With another number of turns they are other episodes.
    await train(tmp_path / "other", Talk(), config, **killed)
    fewer = await train(tmp_path / "other", Talk(turns=2), config, resume=True)
    assert any("dropped 8 samples" in line for line in fewer.reporter.said)


async def test_waiting_samples_of_an_older_version_are_read(tmp_path: Path) -> None:
    """Their format had completions instead of episodes."""

    def kill(version: int) -> None:
        if version == 3:
            raise Killed

    config = configured({"steps": 4, **ONCE}, evaluation=QUIET, max_staleness=1)
    whole = await train(tmp_path / "whole", config=config)
    killed: Any = {"sampler": lambda local: Wrapped(local, refreshed=kill), "raises": Killed}
    await train(tmp_path / "run", config=config, **killed)
    file = tmp_path / "run/checkpoints/step_000002/trainer.pt"
    state = torch.load(file, weights_only=True)
    for waiting_P in state["pending"].values():
        for waiting in waiting_P:
            episodes = waiting.pop("episodes")
            waiting["samples"] = [episode["turns"][0]["sample"] for episode in episodes]
    torch.save(state, file)
    manifest = file.with_name("manifest.json")
    about = json.loads(manifest.read_text())
    about["sha256"]["trainer.pt"] = hashlib.sha256(file.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(about))
    resumed = await train(tmp_path / "run", config=config, resume=True)
    assert not any("dropped" in line for line in resumed.reporter.said)
    assert resumed.metrics == whole.metrics
    assert same(resumed.weights, whole.weights)


@pytest.mark.parametrize("staleness", [0, 1])
async def test_who_answers_late_changes_nothing_but_the_clock(
    tmp_path: Path, staleness: int
) -> None:
    config = configured({"steps": 2, **ONCE}, evaluation=QUIET, max_staleness=staleness)
    even = await train(tmp_path / "even", Slow(), config)
    slow = Slow(seconds=lambda key: 0.02 * (int(key[-1]) % 2 + 2 * (key.split("/")[2] == "0")))
    late = await train(tmp_path / "late", slow, config)
    assert even.metrics == late.metrics
    assert same(even.weights, late.weights)


@pytest.mark.parametrize("kind", [Talk, Slow])
async def test_what_is_kept_between_turns_changes_no_draw(tmp_path: Path, kind: type[Talk]) -> None:
    """With room for all, some or none of it, and the same each time."""
    config = configured({"steps": 1, **ONCE}, {"keep_logprobs": True}, QUIET)
    computed: list[int] = []
    found: list[Outcome] = []
    for number, room in enumerate((None, 160, 160, 0)):
        tokens: list[int] = []

        def sampler(local: LocalSampler, room: int | None = room, fed: Any = tokens) -> Sampler:
            embed = local._policy.causal_lm.get_input_embeddings()
            embed.register_forward_hook(lambda module, inputs, _: fed.append(inputs[0].numel()))
            return LocalSampler(local._policy, 64, kept=room)

        done = await train(tmp_path / str(number), kind(), config, sampler=sampler, template=KEEPS)
        computed.append(sum(tokens))
        found.append(done)
    assert computed[0] < computed[1] == computed[2] < computed[3]
    assert found[1].metrics == found[2].metrics and same(found[1].weights, found[2].weights)
    rows, *others = [
        [row["token_logprobs"] for row in read_rollouts(done.path, 1)] for done in found
    ]
    for other in others:
        for one, again in zip(rows, other, strict=True):
            assert one["ids"] == again["ids"] and len(one["turns"]) == len(again["turns"])
            assert one["sampler"] == pytest.approx(again["sampler"], abs=2e-4)


async def test_a_slow_answer_holds_nobody_but_its_group(tmp_path: Path) -> None:
    """The second group is decoded to its end while an answer of the first is awaited."""
    events: list[str] = []
    done = asyncio.Event()

    class Held(Slow):
        async def respond(self, episode: Episode) -> Observation | None:
            _, _, place, attempt = episode.key.split("/")
            events.append(f"{place}/{attempt}/{len(episode.turns)}")
            if place == "0" and attempt == "0" and len(episode.turns) == 1:
                await done.wait()
                events.append("answered")
            if place == "1" and len(episode.turns) == 3:
                done.set()
            return Observation("more")

    await train(tmp_path, Held(), configured({"steps": 1}, evaluation=QUIET))
    at = events.index("answered")
    assert {f"1/{n}/3" for n in range(4)} <= {*events[:at]}
    assert not any(event.startswith("0/") and event.endswith("/2") for event in events[:at])


async def test_groups_decoded_together_draw_the_same_in_fewer_passes(tmp_path: Path) -> None:
    passes: list[int] = []
    drawn: list[list[Any]] = []
    for most in (1, 2, 0):
        count = [0]

        def sampler(local: LocalSampler, count: list[int] = count) -> Sampler:
            def add(module: Any, inputs: Any, output: Any) -> None:
                count[0] += 1

            local._policy.causal_lm.get_input_embeddings().register_forward_hook(add)
            return local

        turns = TurnsSection(groups_at_once=most)
        config = configured({"steps": 1, "turns": turns, **ONCE}, {"keep_logprobs": True}, QUIET)
        run = tmp_path / str(most)
        await train(run, Slow(config=config), config, sampler=sampler)
        passes.append(count[0])
        drawn.append([row["token_logprobs"]["ids"] for row in read_rollouts(run, 1)])
    assert drawn[0] == drawn[1] == drawn[2]
    assert passes[0] > passes[1] == passes[2]


@dataclass
class OneByOne(Wrapped):
    """A sampler that takes each request by itself, as vLLM's."""

    drawn: list[tuple[int, int]] = field(default_factory=list)

    @property
    def batches(self) -> bool:
        return False

    async def sample(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        sampling: Sampling,
        places: Sequence[int] | None = None,
    ) -> list[list[Sample]]:
        self.drawn += [(sampling.seed, place) for place in places or ()]
        return await super().sample(prompts, n, sampling, places)


async def test_with_servers_each_attempt_is_a_chain_of_its_own(tmp_path: Path) -> None:
    drawn: list[tuple[int, int]] = []

    def sampler(local: Any) -> OneByOne:
        return OneByOne(local, drawn=drawn)

    config = configured({"steps": 1, **ONCE}, evaluation=QUIET)
    slow = Slow(seconds=lambda key: 0.03 * (key[-1] in "02"))
    done = await train(tmp_path / "run", slow, config, sampler=sampler)
    assert len(drawn) > 8 and len({*drawn}) == len(drawn), "no turn repeats another's draw"
    again = await train(tmp_path / "again", Slow(), config, sampler=sampler)
    assert done.metrics == again.metrics and same(done.weights, again.weights)
    assert all(row["tokens/trained_as_sampled"] == 1.0 for row in rows_of(done))


async def test_the_rewards_pay_for_the_tokens_of_all_turns(tmp_path: Path) -> None:
    """``overlong: soft`` counts all that was written, against the limit of all turns."""
    options = {"steps": 1, "overlong": "soft", "overlong_buffer": 6, **ONCE}
    seen: dict[str, Episode] = {}

    class Graded(Talk):
        async def rollout(self, groups: Sequence[Sequence[Episode]]) -> list[list[Rollout]]:
            seen.update({episode.key: episode for group in groups for episode in group})
            return await super().rollout(groups)

    await train(tmp_path, Graded(), configured(options, evaluation=QUIET))
    penalties = set()
    for record in read_rollouts(tmp_path, 1):
        episode = seen[f"1/1/{record['group']}/{record['index']}"]
        written = sum(len(turn.sample.token_ids) for turn in episode.turns)
        assert record["reward"]["parts"]["overlong"] == -max(0.0, (written - 12) / 6)
        penalties.add(record["reward"]["parts"]["overlong"])
    assert len(penalties) > 1


async def test_a_teacher_scores_whole_episodes(tmp_path: Path) -> None:
    """One that is the policy itself is at no distance from it, behind whatever context."""
    grpo = {"steps": 1, "teacher": {"model": "t"}, "epochs": 1, "minibatches": 1}
    for number, template in enumerate((KEEPS, COUNTS)):
        teacher = LocalTeacher(tiny_policy(trained=False), GrpoSection())
        config = configured(grpo, evaluation=QUIET)
        done = await train(
            tmp_path / str(number), Talk(), config, teacher=teacher, template=template
        )
        assert done.metrics[1]["teacher/kl"] == pytest.approx(0.0, abs=1e-5)
        assert done.metrics[1]["teacher/failed"] == 0.0
