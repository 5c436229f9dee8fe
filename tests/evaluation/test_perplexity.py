"""What training costs on a text that it is not about: perplexity and the length of completions."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_policy import shake, tiny_policy
from toy_run import TASKS, Toy, configured, train

from flowright.app.comparison_tables import findings
from flowright.config.grpo import GrpoSection
from flowright.core.errors import DataError
from flowright.data.row_files import read_documents
from flowright.environments.base import prompt_encoder
from flowright.environments.registry import make_config
from flowright.evaluation.comparison import LENGTH, PERPLEXITY, TRAINED, UNTRAINED, drift, summarise
from flowright.evaluation.evaluator import Evaluator, TableRow, make_row, row_of
from flowright.evaluation.perplexity import (
    HeldOutText,
    TextScore,
    before_and_after,
    open_text,
    windows_of,
)
from flowright.policy.local import LocalSampler
from flowright.policy.model import Policy

ROOT = Path(__file__).parents[2]
TEXTS = ["The tide comes in twice a day.", "Bread wants salt, and time.", "x" * 90]
LONGEST = 40


def written(path: Path, texts: Sequence[Any] = TEXTS) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def opened(path: Path, policy: Policy, **evaluation: Any) -> HeldOutText:
    config = make_config(
        {
            "policy": {"max_prompt_tokens": LONGEST - 10, "max_new_tokens": 10},
            "grpo": {"micro_batch_tokens": 64},
            "evaluation": {"text": path, **evaluation},
        }
    )
    text = open_text(config, policy)
    assert text is not None
    return text


def loss_of_transformers(model: Any, windows: Sequence[Sequence[int]]) -> float:
    """The mean over all predicted tokens of what transformers calls the loss of each window."""
    total, count = 0.0, 0
    with torch.no_grad():
        for ids in windows:
            row = torch.tensor([list(ids)])
            total += float(model(input_ids=row, labels=row).loss) * (len(ids) - 1)
            count += len(ids) - 1
    return total / count


@pytest.mark.parametrize("sharing", [True, False])
@pytest.mark.parametrize("architecture", ["qwen2", "granite"])
async def test_it_is_the_loss_of_transformers(
    architecture: str, sharing: bool, tmp_path: Path
) -> None:
    policy = tiny_policy(architecture)
    text = opened(written(tmp_path / "text.jsonl"), policy)
    text = replace(text, section=GrpoSection(micro_batch_tokens=64, prefix_sharing=sharing))
    before, after = await before_and_after(text)
    assert before is not None and after is not None
    ids = [window.token_ids for window in text.windows]
    # A token is a byte: the last text takes three windows.
    assert [len(window) for window in ids] == [30, 27, 40, 40, 10]
    trained = loss_of_transformers(policy.causal_lm, ids)
    with policy.reference():
        untrained = loss_of_transformers(policy.causal_lm, ids)
    assert math.log(after.perplexity) == pytest.approx(trained, abs=1e-4)
    assert math.log(before.perplexity) == pytest.approx(untrained, abs=1e-4)
    assert abs(trained - untrained) > 1e-2, "the adapter must show"
    assert after.tokens == (29, 26, 39, 39, 9) and after.documents == (0, 1, 2, 2, 2)


async def test_of_all_weights_too(tmp_path: Path) -> None:
    policy = tiny_policy(train="full", trained=False)
    text = opened(written(tmp_path / "text.jsonl"), policy)
    same_before, same_after = await before_and_after(text)
    assert same_before == same_after
    shake(policy, scale=0.02)
    before, after = await before_and_after(text)
    assert before == same_before and after is not None
    ids = [window.token_ids for window in text.windows]
    loss = loss_of_transformers(policy.causal_lm, ids)
    assert math.log(after.perplexity) == pytest.approx(loss, abs=1e-4)


def test_a_cut_is_said(tmp_path: Path) -> None:
    policy, path = tiny_policy(), written(tmp_path / "text.jsonl")
    whole = opened(path, policy)
    assert whole.notes == [
        f"text      {path}: 3 documents, 142 predicted tokens in 5 windows of at most 40"
    ]
    cut = opened(path, policy, text_tokens=50)
    assert [len(window.token_ids) for window in cut.windows] == [30, 20]
    (line,) = cut.notes
    assert "2 of 3 documents, 48 predicted tokens in 2 windows" in line
    assert line.endswith("cut after 50 tokens (evaluation.text_tokens)")
    assert "cut after" not in opened(path, policy, text_tokens=147).notes[0]


def test_windows_begin_as_a_text_begins() -> None:
    tokenizer = tiny_policy().tokenizer

    class Begins:
        """A tokenizer whose texts begin with token 1, as Llama's do."""

        bos_token_id = 1

        def encode(self, text: str, add_special_tokens: bool = True, **_: Any) -> list[int]:
            return [1] * add_special_tokens + tokenizer.encode(text, add_special_tokens=False)

    windows, cut = windows_of(["abcdefg"], Begins(), 4, 100)  # pyright: ignore[reportArgumentType]
    plain, _ = windows_of(["abcdefg"], tokenizer, 100, 100)
    ids = plain[0].token_ids
    assert [window.token_ids for window in windows] == [(1, *ids[:3]), (1, *ids[3:6]), (1, ids[6])]
    assert not cut
    # Without such a token a window of one has nothing to predict.
    assert [w.token_ids for w in windows_of(["abcdefg"], tokenizer, 3, 100)[0]] == [
        ids[:3],
        ids[3:6],
    ]


def test_files(tmp_path: Path) -> None:
    plain = tmp_path / "a.txt"
    plain.write_text("One text.\n\nStill the same.")
    assert read_documents(plain).texts == ("One text.\n\nStill the same.",)
    rows = read_documents(written(tmp_path / "b.jsonl", ["a b", "", 3, None, "c d"]))
    assert rows.texts == ("a b", "c d") and rows.counted == "2 documents"
    assert rows.left_out[0].startswith("2 of 5 rows used; left out:")
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"text": ["e", "f"]}), tmp_path / "c.parquet")
    assert read_documents(tmp_path / "c.parquet").texts == ("e", "f")
    for name, content in (("none.txt", None), ("empty.txt", " \n"), ("other.jsonl", '{"a": 1}\n')):
        path = tmp_path / name
        if content is not None:
            path.write_text(content)
        with pytest.raises(DataError, match=name):
            read_documents(path)


def test_the_text_that_comes_along_has_some_documents() -> None:
    shipped = read_documents(ROOT / "config/plain_english.jsonl")
    assert len(shipped.texts) == 12 and not shipped.left_out
    assert 1500 < sum(len(text.split()) for text in shipped.texts) < 2500


def test_a_policy_that_scores_reads_no_text() -> None:
    with pytest.raises(ValueError, match=r"evaluation\.text: policy\.head: score predicts no"):
        make_config(
            {
                "policy": {"head": "score"},
                "grpo": {"loss": "bradley_terry"},
                "evaluation": {"text": "a.txt"},
            }
        )


# Before and after.


def text_score(*nats: float, tokens: int = 10, documents: Sequence[int] | None = None) -> TextScore:
    count = len(nats)
    perplexity = math.exp(sum(nats) / (tokens * count))
    return TextScore(perplexity, nats, (tokens,) * count, tuple(documents or range(count)))


def row(name: str, text: TextScore | None = None, lengths: Sequence[float] = ()) -> TableRow:
    made = make_row(name, "policy", [], Toy(make_config()))
    return replace(made, text=text, lengths=tuple(lengths))


def test_a_change_by_hand() -> None:
    before = row(UNTRAINED, text_score(20, 30, 40), [10, 20, 30, 40])
    after = row(TRAINED, text_score(21, 30, 42), [8, 20, 26, 40])
    found = summarise(Toy(make_config()), (), [before, after], {})
    changes = found.drift[TRAINED]
    perplexity, length = changes[PERPLEXITY], changes[LENGTH]
    # Means of 3.0 and 3.1 nats a token: the quotient is exp(0.1), and per document exp(0.1),
    # exp(0) and exp(0.2), between which the interval lies.
    assert (perplexity.before, perplexity.after) == pytest.approx((math.exp(3.0), math.exp(3.1)))
    assert perplexity.change == pytest.approx(math.exp(0.1))
    assert perplexity.low is not None and perplexity.high is not None
    assert 1 <= perplexity.low < perplexity.change < perplexity.high <= math.exp(0.2) + 1e-6
    # Differences of -2, 0, -4 and 0 tokens.
    assert (length.before, length.after, length.change) == (25.0, 23.5, -1.5)
    assert length.low is not None and length.high is not None
    assert -4 <= length.low < -1.5 < length.high <= 0
    said = findings(found)
    assert "perplexity of evaluation.text: 20.09 -> 22.20, times 1.105 (95 %: " in said[0]
    assert said[1].startswith("tokens of a completion: 25.0 -> 23.5, -1.5 (95 %: ")
    assert json.loads(json.dumps(found.to_json()))["drift"][TRAINED][LENGTH]["change"] == -1.5


def test_windows_of_one_document_stand_for_it_and_of_several_do_not() -> None:
    def interval(documents: Sequence[int]) -> tuple[float | None, float | None]:
        before = row("a", text_score(10, 10, 10, 10, documents=documents))
        after = row("b", text_score(11, 13, 11, 13, documents=documents))
        found = drift(before, after)[PERPLEXITY]
        return found.low, found.high

    low, high = interval([0, 0, 0, 0])
    assert low is not None and high is not None and 1 < low < high
    # Both documents say the same: there is no spread to draw an interval from.
    assert interval([0, 0, 1, 1]) == (None, None)


def test_what_one_side_lacks_is_not_compared() -> None:
    assert drift(row("a", text_score(1.0)), row("b", lengths=[1.0])) == {}
    alone = summarise(Toy(make_config()), (), [row(TRAINED, text_score(1.0))], {})
    assert alone.drift == {}


# In evaluations.


async def test_a_row_has_the_lengths_of_its_completions(tmp_path: Path) -> None:
    policy, config = tiny_policy(), configured(evaluation={"samples": 2})
    environment = Toy()
    encode = prompt_encoder(environment, policy.tokenizer, config.policy.max_prompt_tokens)
    evaluator, sampler = Evaluator(environment, encode, config), LocalSampler(policy, 64)
    text = await opened(written(tmp_path / "text.jsonl"), policy).score()
    made = await evaluator.row("policy", sampler, TASKS, text=text)
    assert len(made.lengths) == len(TASKS) and made.text == text
    assert all(1 <= length <= config.policy.max_new_tokens for length in made.lengths)
    assert row_of(json.loads(json.dumps(asdict(made)))) == made


async def test_every_evaluation_of_a_run_tells_both(tmp_path: Path) -> None:
    config = configured({"steps": 2}, evaluation={"text": written(tmp_path / "text.jsonl")})
    found = await train(tmp_path / "run", config=config)
    told = {r["step"]: r for r in found.metrics if "eval/perplexity" in r}
    assert list(told) == [0, 2]
    ids = [w.token_ids for w in windows_of(TEXTS, found.policy.tokenizer, 106, 8192)[0]]
    trained = loss_of_transformers(found.policy.causal_lm, ids)
    with found.policy.reference():
        untrained = loss_of_transformers(found.policy.causal_lm, ids)
    assert math.log(told[0]["eval/perplexity"]) == pytest.approx(untrained, abs=1e-4)
    assert math.log(told[2]["eval/perplexity"]) == pytest.approx(trained, abs=1e-4)
    assert all(1 <= row["val/tokens_completion_mean"] <= 6 for row in told.values())
