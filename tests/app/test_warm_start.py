"""A warm start from end to end: what it learns from, what it leaves, and how a run finds it."""

import io
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from rich.console import Console
from tiny_policy import checkpoint
from transformers import AutoModelForCausalLM, AutoTokenizer
from words_environment import WORDS, Words

from flowright.app.open_policies import open_policy
from flowright.app.preflight_checks import check_checkpoint, check_model
from flowright.app.warm_start import WarmStartExample, balanced, passed, warm_start, weighted_sample
from flowright.config.root import Config
from flowright.core.errors import Failure, Reason, RunPaused, UserError
from flowright.data.task import Task
from flowright.environments.registry import make_config
from flowright.environments.rollout import Reward, Rollout
from flowright.grading import Gold
from flowright.judging.verdict import Verdict
from flowright.policy.base_models import origin_of
from flowright.policy.sampling import Sample


def configured(folder: Path | None, judge: str = "any", **given: Any) -> Config:
    section = {"folder": folder, "steps": 40, "prompts_per_step": 4, "learning_rate": 0.05}
    section |= {"warmup_steps": 0, "probes": 3, "probe_samples": 16, "problems": 20, "attempts": 1}
    policy = {"device": "cpu", "lora": {"rank": 8, "alpha": 16}, "max_new_tokens": 8}
    return make_config(
        {
            "environment": "words_environment:Words",
            "strategy_model": str(checkpoint()),
            "policy": {**policy, "warm_start": {**section, "completions": 3, **given}},
            "grpo": {"prompts_per_step": 2},
            "judge": {"model": judge},
        }
    )


def run(config: Config, overwrite: bool = False) -> str:
    console = Console(file=io.StringIO(), width=200)
    assert warm_start(config, console, overwrite) == 0
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, Path, str]:
    folder = tmp_path_factory.mktemp("made") / "warm"
    config = configured(folder)
    return config, folder, run(config)


def test_it_says_what_it_found_before_and_after(made: tuple[Config, Path, str]):
    _, folder, said = made
    before, after = (line for line in said.splitlines() if "completions valid" in line)
    assert before.startswith("before") and "% of 48 completions valid" in before
    assert "on 3 train problems that it is not trained on" in before
    assert after.startswith("after")
    assert "drawn completions passed, on 7 of 7 train problems" in said
    assert f"written   {folder}" in said
    origin = origin_of(folder)
    assert origin is not None
    assert origin.recipe["valid"]["after"] > 3 * origin.recipe["valid"]["before"]
    assert str(checkpoint()) in origin.summary and "40 supervised steps" in origin.summary


def test_the_folder_is_an_ordinary_model_and_the_reference_of_a_run(made: Any):
    config, folder, _ = made
    model = AutoModelForCausalLM.from_pretrained(folder)
    policy = open_policy(config, Words(config), [])
    assert policy.name == str(folder)
    ids = torch.tensor([AutoTokenizer.from_pretrained(folder).encode("Say it, 3.")])
    with torch.no_grad():
        own, fresh = model(ids).logits, policy.causal_lm(input_ids=ids).logits
    assert torch.allclose(own, fresh, atol=1e-5)
    assert sorted(p.name for p in folder.parent.iterdir()) == ["warm", "warm.lock"]


def test_it_is_made_once(made: tuple[Config, Path, str]):
    config, folder, _ = made
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert run(config).splitlines() == [f"already there: {folder}"]
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    assert check_model(config).startswith("warm-started")


def test_other_settings_are_another_model(made: tuple[Config, Path, str]):
    _, folder, _ = made
    other = configured(folder, seed=1)
    for look in (lambda: check_model(other), lambda: run(other)):
        with pytest.raises(UserError, match=r"warm_start\.seed: 0 -> 1.*--overwrite"):
            look()


def test_a_run_that_lacks_it_is_told_the_command(tmp_path: Path):
    config = configured(tmp_path / "none").read_from("config/mine.yaml seed=3")
    told = r"no warm-started model.*warm_start\.py --config config/mine\.yaml seed=3$"
    with pytest.raises(UserError, match=told):
        check_model(config)


def test_an_adapter_of_another_base_is_refused(made: tuple[Config, Path, str], tmp_path: Path):
    config, folder, _ = made
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter/adapter_model.safetensors").touch()
    about = {"r": 8, "lora_alpha": 16, "base_model_name_or_path": str(folder)}
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps(about))
    check_checkpoint(tmp_path, config)
    with pytest.raises(UserError, match="base_model_name_or_path: warm -> "):
        check_checkpoint(tmp_path, configured(None))


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="holds something else"):
        run(configured(tmp_path))
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_without_a_folder_it_asks_for_one():
    with pytest.raises(UserError, match=r"policy\.warm_start\.folder: name"):
        run(configured(None))


def test_a_policy_that_can_is_left_as_it_is(tmp_path: Path):
    said = run(configured(tmp_path / "warm", enough_valid=0.0))
    assert "no warm start is needed" in said
    assert not (tmp_path / "warm").exists()


def test_nothing_is_learned_where_every_attempt_was_lost(tmp_path: Path):
    with pytest.raises(RunPaused, match="none of the policy's completions could be run"):
        run(configured(tmp_path / "warm", judge="lost"))
    assert not (tmp_path / "warm").exists()


def attempt(text: str, gold: bool | None, failure: Reason | None = None, judge: Any = None):
    return Rollout(
        Task("t", "word", "words", "?", "yes"),
        Sample((), (), text, "stop", -1),
        Reward(None if failure is Reason.JUDGE_FAILED else 0.0),
        Failure(failure, "") if failure else None,
        None if judge is None else Verdict(float(judge), judge, "llm", "ok"),
        None if gold is None else Gold(gold, ""),
    )


def test_what_passes_is_known_by_gold_then_by_the_judge_and_lost_attempts_say_nothing():
    lost = Reason.JUDGE_FAILED
    rollouts = [
        *(attempt("half", True), attempt("half", False)),
        *(attempt("seldom", True), attempt("seldom", False), attempt("seldom", False)),
        *(attempt("lost once", None, lost), attempt("lost once", True)),
        *(attempt("lost", None, lost), attempt("lost", None, lost)),
        *(attempt("judged", None, judge=True), attempt("judged wrong", None, judge=False)),
        *(attempt("gold decides", False, judge=True), attempt("broken", None, Reason.SYNTAX)),
        attempt("ran", None),
    ]
    assert passed(rollouts, 0.5) == ["half", "lost once", "judged", "ran"]


@given(st.lists(st.lists(st.sampled_from(WORDS), unique=True, min_size=1), min_size=1))
def test_every_way_weighs_the_same_and_every_completion_of_a_way(shown: Sequence[Sequence[str]]):
    ways = {"y": ("vowel",), "n": ("consonant",), "m": ("consonant",)}
    examples = [
        WarmStartExample(
            Task(str(i), "word", "words", "?", ""), {text: ways[text] for text in texts}
        )
        for i, texts in enumerate(shown)
    ]
    weights = balanced(examples)
    sums = {
        text: weight * sum(text in texts for texts in shown)
        for (_, text), weight in weights.items()
    }
    for way in {ways[text] for text in sums}:
        alike = [total for text, total in sums.items() if ways[text] == way]
        assert sum(alike) == pytest.approx(1.0)
        assert max(alike) == pytest.approx(min(alike))


def test_what_weighs_more_is_drawn_more_often_and_nothing_twice():
    rng = random.Random(0)
    draws = [weighted_sample({"a": 3.0, "b": 1.0}, 1, rng) for _ in range(400)]
    assert 260 < draws.count(["a"]) < 340  # 300 are expected
    assert sorted(weighted_sample({"a": 3.0, "b": 0.01}, 5, rng)) == ["a", "b"]
