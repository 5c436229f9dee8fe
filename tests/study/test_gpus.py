"""Runs on GPUs: who gets which, and what is planned. No GPU is needed, and none is used."""

import sys
from pathlib import Path

import pytest
import yaml
from fake_study import command, started

from flowright.core.errors import ConfigError
from flowright.study.config import GpuSection, load_study
from flowright.study.plan import gpu_plans, server_hours
from flowright.study.runner import gpu_groups, on_gpus, open_placement, with_processes
from flowright.study.runs import StudyCell, StudyRun, cells_of, runs_of

ROOT = Path(__file__).parents[2]
FILE = ROOT / "config/study/gpu.yaml"
SAYS = "import os; print(os.environ['CUDA_DEVICE_ORDER'], os.environ['CUDA_VISIBLE_DEVICES'])"


def section(**changes: object) -> GpuSection:
    return load_study(FILE).gpus.model_copy(update=changes)  # type: ignore[union-attr]


def a_run(embedded: bool = False) -> StudyRun:
    return StudyRun(StudyCell("a", "a", "a"), 0, Path("a/seed_0"), "", "", (), embedded)


def test_each_run_has_gpus_of_its_own_and_gives_them_back(tmp_path: Path) -> None:
    groups = gpu_groups(section(per_run=2, devices=(4, 5, 6, 7, 9)))
    assert groups == [("4", "5"), ("6", "7")]
    start = on_gpus(groups, started)
    words, logs = [sys.executable, "-c", SAYS], [tmp_path / f"{n}.log" for n in range(3)]
    first = start(a_run())(words, logs[0])
    second = start(a_run())(words, logs[1])
    assert second.wait() == 0
    assert start(a_run())(words, logs[2]).wait() == 0
    assert first.wait() == 0
    said = [log.read_text() for log in logs]
    assert said == [f"PCI_BUS_ID {gpus}\n" for gpus in ("4,5", "6,7", "6,7")]
    assert start(a_run(embedded=True)) is started(a_run())


def test_a_run_on_several_gpus_is_as_many_processes() -> None:
    plain = command(a_run(), Path("base.yaml"), True)
    words = [*with_processes(command, 2, a_run(), Path("base.yaml"), True)]
    assert words[0] == plain[0] and words[-len(plain[1:]) :] == plain[1:]
    assert words[1:3] == ["-m", "torch.distributed.run"] and "--nproc_per_node=2" in words


def test_without_gpus_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    given = (None, command, started, False)
    with (
        pytest.raises(ConfigError, match="a run takes 1"),
        open_placement(load_study(FILE), *given),
    ):
        pass
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    with open_placement(load_study(FILE), *given) as placement:
        assert placement.at_once == 2


def test_the_shipped_study_is_planned_from_what_it_assumes(tmp_path: Path) -> None:
    study = load_study(FILE)
    runs = runs_of(study, cells_of(study), tmp_path)
    assert len(runs) == 75 and all("physical_gpus=null" in run.overrides for run in runs)
    assert study.gpus is not None
    plans = {plan.cell.name: plan for plan in gpu_plans(study.base, study.gpus, runs)}
    attempts = 200 * 32 * 16 + 2 * 300 * 4  # training, and both policies of the table
    assert all(plan.calls("executor") == plan.runs * 3 * attempts for plan in plans.values())
    judged = {name: plans[name].calls("judge") / plans[name].runs / attempts for name in plans}
    assert (judged["gold"], judged["qwen3@1.7"], judged["panel"], judged["sampled"]) == (0, 1, 3, 5)
    assert plans["panel"].judges == ("qwen3-8b", "gpt-oss-20b", "llama-8b")
    assert plans["qwen3@8"].tokens("judge") == plans["qwen3@8"].runs * attempts * (700 + 600)
    hours = server_hours([plans["llama@70"], plans["gold"]], at_once=2)  # five runs: three rounds
    assert hours["llama-70b"] == 3 * plans["llama@70"].seconds / 3600
    assert hours["gpt-oss-120b"] == hours["llama-70b"] + 3 * plans["gold"].seconds / 3600
    lacking = study.gpus.model_copy(update={"servers": {}})
    with pytest.raises(ConfigError, match="no call_seconds of 'llama-70b'"):
        gpu_plans(study.base, lacking, runs)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"set": {"physical_gpus": [0]}}, "set.physical_gpus: leave it out"),
        ({"devices": [0]}, "gpus.devices: name 2 or more"),
        ({"devices": [0, 0, 1]}, "gpus.devices: name 3 or more"),
    ],
)
def test_which_gpus_is_said_once(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    given = yaml.safe_load(FILE.read_text())
    given["gpus"] |= {"per_run": 2} | {k: v for k, v in changes.items() if k != "set"}
    given |= {k: v for k, v in changes.items() if k == "set"}
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(given))
    with pytest.raises(ConfigError, match=said):
        load_study(path)
