"""Small runs of the four ways to train a judge, each in a process of its own, for
tests/app/test_judge_resume.py. The processes are forked from one that has torch loaded, so that a
run takes seconds; all else is as ``train.py`` and torchrun do it.
"""

import json
import multiprocessing
import os
import random
import signal
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from processes import free_port

from flowright.config.root import Config
from flowright.environments.registry import make_config

STEPS = 6
BOTH = ("pointwise", "pairwise")
GIVEN = ("sft", "bradley_terry")
METHODS = (*GIVEN, *BOTH)
LOADED = ["flowright.app.session", "flowright.viewer.run_report", "flowright.app.session"]


def config_of(method: str, base: Path, folder: Path, model: Path, **changes: Any) -> Config:
    """A run in ``folder``, its data and cold start in ``base``. ``model`` is trained where nothing
    is sampled; the others begin with a small one that has learned the form of a judgement, so that
    some of what it writes can be read and earns other than the rest."""
    given = method in GIVEN
    fields: dict[str, Any] = {
        "environment": "judging",
        "strategy_model": str(model) if given else "tiny",
        "run": {"name": "run", "output_dir": folder, "checkpoint_every": 2, "tensorboard": False},
        "judging": {"method": method, "wording": "short", **_files(method, base)},
        "policy": {
            "device": "cpu",
            "lora": {"rank": 4, "alpha": 8},
            "max_prompt_tokens": 256,
            "max_new_tokens": 24,
            "temperature": 0.8,
            "tiny": {
                "cache_dir": base,
                "hidden_size": 64,
                "layers": 1,
                "heads": 2,
                "examples": 100,
                "steps": 75,
                "prompt_weight": 0.0,
            },
        },
        "grpo": {"steps": STEPS, "prompts_per_step": 5, "learning_rate": 1e-3, "group_size": 4},
        "pipeline": {"max_staleness": 0},
        "evaluation": {"every": 3, "problems": 4, "final_problems": 4, "baselines": False},
    }
    if given:
        fields["grpo"] |= {"loss": method, "kl_coefficient": 0.0}
    if method == "bradley_terry":
        fields["policy"] |= {"head": "score"}
    for section, values in changes.items():
        fields[section] = {**fields.get(section, {}), **values}
    return make_config(fields)


def _files(method: str, base: Path) -> dict[str, Any]:
    """40 rows of ragged length, labelled at random."""
    path, rng = base / f"{method}.jsonl", random.Random(0)

    def words(most: int) -> str:
        return " ".join(rng.choice(("a", "bc", "def", "ghij")) for _ in range(rng.randint(1, most)))

    def messages(asked: str, answer: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]

    rows = []
    for number in range(40):
        asked = f"{number} {words(8)}"
        if method == "sft":
            rows.append({"messages": messages(asked, words(9)) + messages(words(3), words(4))})
        elif method == "pointwise":
            question, answer = messages(asked, words(9))
            label = {"helpfulness": rng.randint(0, 4)}
            rows.append({"input": [question], "output": [{"answer": {**answer, "label": label}}]})
        else:
            better, worse = (messages(asked, f"{words(9)} {n}") for n in (1, 2))
            strength = float(rng.randint(0, 3))
            rows.append({"chosen": better, "rejected": worse, "strength": strength})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"data": "files", "train_files": [path], "val_share": 0.2}


def run(
    config: Config,
    log: Path,
    resume: bool = False,
    kill_at: int = 0,
    processes: int = 1,
    on_ray: bool = False,
) -> list[int | None]:
    """Exit codes of the run's processes. ``kill_at``: the process sends itself SIGKILL behind so
    many optimizer steps, the last of which stands in no record and no checkpoint. ``on_ray``: as
    ``train.py --ray``."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    ranks: Sequence[dict[str, str]] = [{}]
    if processes > 1:
        met = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        met |= {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
        ranks = [met | {"RANK": str(n), "LOCAL_RANK": str(n)} for n in range(processes)]
    started = [_start(context, config, log, resume, kill_at, given, on_ray) for given in ranks]
    for process in started:
        process.join(1800)
        process.kill()  # of one that hangs; the others have ended
        process.join()
    return [process.exitcode for process in started]


def _start(context: Any, *given: Any) -> BaseProcess:
    process = context.Process(target=_work, args=given)
    process.start()
    return process


def _work(
    config: Config,
    log: Path,
    resume: bool,
    kill_at: int,
    environment: dict[str, str],
    on_ray: bool,
) -> None:
    os.environ |= environment
    with log.open("ab", buffering=0) as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from flowright.app.launch import train, train_on_ray

    torch.set_num_threads(1)
    done = 0

    def count(*_: object) -> None:
        nonlocal done
        done += 1
        if done == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    register_optimizer_step_post_hook(count)
    raise SystemExit((train_on_ray if on_ray else train)(config, resume))
