"""Judges trained on files, two steps of each method by a random model: what a run, its checkpoints
and its export say of what it was trained on, and the metrics under the names that others use."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import uvloop
from command_lines import command
from rich.console import Console
from tiny_policy import checkpoint

from flowright.app.exporting import Request, export_model
from flowright.app.preflight_checks import check_start
from flowright.app.session import run_training
from flowright.data.contamination import TrainedOn, conversation_key
from flowright.environments.registry import make_config
from flowright.grpo.ranks import ONE
from flowright.judging.measuring.benchmark_report import read_record
from flowright.llm.chat import Message
from flowright.runs.run_files import read_metrics

ROOT = Path(__file__).parents[2]
METHODS = ("sft", "bradley_terry", "pointwise", "pairwise")
Row = dict[str, Any]


def question(number: int) -> str:
    return f"{number} + {number}?"


def row(method: str, number: int) -> Row:
    asked = [{"role": "user", "content": question(number)}]
    right, wrong = ({"role": "assistant", "content": str(2 * number + n)} for n in (0, 1))
    if method == "sft":
        return {"messages": [*asked, right], "source": "sums"}
    if method == "bradley_terry":
        return {"chosen": [*asked, right], "rejected": [*asked, wrong], "source": "sums"}
    answers = [
        right | {"label": {"preference": "A", "helpfulness": 4}},
        wrong | {"label": {"preference": "A", "helpfulness": 0}},
    ]
    outputs = [{"answer": answer} for answer in answers[: 1 + (method == "pairwise")]]
    return {"input": asked, "output": outputs, "source": "sums"}


def key(number: int) -> str:
    return conversation_key([Message("user", question(number))])


def train(
    method: str,
    folder: Path,
    steps: int = 2,
    resume: bool = False,
    model: Path | None = None,
    **judging: Any,
) -> Path:
    """Returns the run's directory."""
    path = folder / "rows.jsonl"
    if not path.exists():
        path.write_text("".join(json.dumps(row(method, n)) + "\n" for n in range(8)))
    given = method in ("sft", "bradley_terry")
    values = {
        "environment": "judging",
        "strategy_model": str(model or checkpoint()),
        "run": {"name": "run", "output_dir": str(folder), "checkpoint_every": 1},
        "judging": {
            "method": method,
            "data": "files",
            "train_files": [str(path)],
            "val_share": 0.25,
            "wording": "short",
            "benchmark_dir": str(folder / "raw"),
            **judging,
        },
        "policy": {
            "device": "cpu",
            "head": "score" if method == "bradley_terry" else "language_model",
            "max_prompt_tokens": 1500,
            "max_new_tokens": 4,
            "lora": {"rank": 2, "alpha": 4},
        },
        "grpo": {
            "steps": steps,
            "prompts_per_step": 2,
            "kl_coefficient": 0 if given else 0.001,
            **({"loss": method} if given else {"group_size": 2}),
        },
        "evaluation": {"every": 1, "problems": 2, "final_problems": 1, "baselines": False},
    }
    start = check_start(make_config(values), resume)
    with (folder / "log").open("w") as log:
        uvloop.run(run_training(start, Console(file=log), ONE))
    return folder / "run"


@pytest.mark.parametrize("method", METHODS)
def test_a_run_says_what_it_was_trained_on(tmp_path: Path, method: str) -> None:
    run = train(method, tmp_path)
    said = TrainedOn.read(run)
    assert said is not None and said.subsets == {"sums"}
    assert {key(n) for n in range(8)} <= said.conversations, "held-out rows choose a checkpoint"
    assert key(8) not in said.conversations
    for step in range(3):
        assert TrainedOn.read(run / f"checkpoints/step_{step:06d}") == said
    assert "rows compared with llmbar/gptinst" in (tmp_path / "log").read_text()
    first, *rows = read_metrics(run)
    given = {"sft": {"loss"}, "bradley_terry": {"loss", "accuracy"}}.get(method, set())
    for each in rows:
        assert {f"{side}/{name}" for side in ("train", "val") for name in given} <= each.keys()
        assert ("train/reward_mean" in each) is not bool(given)
    assert {f"val/{name}" for name in given} <= first.keys()


def test_what_a_judge_was_trained_on_goes_with_it(tmp_path: Path) -> None:
    """From run to export, to a run that begins with that, and to who measures it."""
    run = train("bradley_terry", tmp_path)
    said = TrainedOn.read(run)
    with (tmp_path / "said").open("w") as log:
        for name, form in (("judge", None), ("adapter", "adapter")):
            export_model(Request(run, tmp_path / name, form), Console(file=log))
            assert TrainedOn.read(tmp_path / name) == said
    assert "trained_on.json" in (tmp_path / "judge/README.md").read_text()
    (tmp_path / "next").mkdir()
    more = [row("bradley_terry", n) | {"source": "others"} for n in range(20, 26)]
    (tmp_path / "next/rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in more))
    after = TrainedOn.read(train("bradley_terry", tmp_path / "next", model=tmp_path / "judge"))
    assert said is not None and after is not None
    assert after.subsets == {"sums", "others"} and after.conversations > said.conversations
    assert key(25) in after.conversations


def test_a_resumed_run_forgets_no_rows(tmp_path: Path) -> None:
    train("bradley_terry", tmp_path, steps=1)
    others = [row("bradley_terry", n) | {"source": "others"} for n in range(20, 26)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in others))
    said = TrainedOn.read(train("bradley_terry", tmp_path, resume=True))
    assert said is not None and said.subsets == {"sums", "others"}
    assert {key(0), key(25)} <= said.conversations


def without_system(folder: Path) -> Path:
    """The random model with a chat template that takes no system message, as Gemma's does not."""
    shutil.copytree(checkpoint(), folder)
    refusal = "{{ raise_exception('System role not\\nsupported') }}"
    check = "{% if messages[0]['role'] == 'system' %}" + refusal + "{% endif %}"
    path = folder / "chat_template.jinja"
    path.write_text(check + path.read_text())
    return folder


@pytest.mark.parametrize("method", ["sft", "bradley_terry"])
def test_rows_that_the_chat_template_refuses_are_named_before_the_first_step(
    tmp_path: Path, method: str
) -> None:
    system = [{"role": "system", "content": "Add."}]
    rows = [row(method, n) for n in range(12)]
    for each in rows[::4]:
        for name in each.keys() & {"messages", "chosen", "rejected"}:
            each[name] = [*system, *each[name]]
    model = without_system(tmp_path / "model")
    for merged in (False, True):
        folder = tmp_path / str(merged)
        folder.mkdir()
        (folder / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
        run = train(method, folder, model=model, merge_system=merged)
        assert len(read_metrics(run)) == 3
        told = (folder / "log").read_text()
        refused = [line for line in told.splitlines() if "the chat template refuses" in line]
        assert len(refused) == (0 if merged else 3)
        assert all(line.endswith("System role not supported") for line in refused)
        named = {line.partition("rows.jsonl:")[2].partition(":")[0] for line in refused}
        assert named == (set() if merged else {"1", "5", "9"})


def test_a_judge_is_not_measured_on_what_it_was_trained_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train("bradley_terry", tmp_path)
    with (tmp_path / "said").open("w") as log:
        export_model(Request(run, tmp_path / "judge"), Console(file=log))
    rows = [
        {"question": f" {question(n).upper()}", "first": "x", "second": "yy", "label": "first"}
        for n in (3, 50, 5)
    ]
    pairs, out = tmp_path / "pairs.jsonl", tmp_path / "out.json"
    pairs.write_text("".join(json.dumps(each) + "\n" for each in rows))
    main = command("judge benchmark")
    asked = ["--judge", str(tmp_path / "judge"), "--pairs", str(pairs), "--json", str(out)]
    assert main(asked) == 2
    told = capsys.readouterr().err
    assert "pairs.jsonl: the judge was trained on 2 of its conversations (1, 3)" in told
    assert "--allow-trained-on" in told and not out.exists()
    assert main([*asked, "--allow-trained-on"]) == 0
    assert "TRAINED ON THESE ROWS" in capsys.readouterr().out
    known = read_record(out)["about"]["trained_on"]
    assert known["files"] == ["judge/trained_on.json"] and len(known["found"]) == 1
