"""A study's file: what it may say, and that all its mistakes are told together."""

import shutil
from pathlib import Path

import pytest
from fake_study import STRENGTH, study, written

from flowright.core.errors import ConfigError
from flowright.study.config import StudyConfig, load_study
from flowright.study.runs import cells_of, runs_of

SHIPPED = sorted((Path(__file__).parents[2] / "config/study").glob("*.yaml"))
ARMS = study()["arms"]
CLAIM = {
    "id": "worse",
    "hypothesis": "It gets worse.",
    "arm": "wordy",
    "measure": "final_gold",
    "direction": "less",
}


def read(folder: Path, **changes: object) -> StudyConfig:
    return load_study(written(folder, **changes))


def test_arms_have_cells_by_dose_and_pairs_of_doses(tmp_path: Path) -> None:
    arms = [
        *ARMS,
        {"name": "dosed", "over": {"x": [0.1, 0.5]}, "set": {STRENGTH: "${x}"}},
        {
            "name": "pair",
            "over": {"a": [0, 1], "b": ["u v", "w"]},
            "set": {"simulated.seed": "${a}", "run.name": "of ${b}"},
        },
    ]
    cells = cells_of(read(tmp_path, arms=arms))
    assert [cell.name for cell in cells] == [
        *("honest", "wordy", "dosed@0.1", "dosed@0.5"),
        *("pair@0,u_v", "pair@0,w", "pair@1,u_v", "pair@1,w"),
    ]
    assert cells[2].overrides == {STRENGTH: 0.1} and cells[2].dose_value == 0.1
    assert cells[4].overrides == {"simulated.seed": 0, "run.name": "of u v"}
    assert cells[4].dose_value is None


def test_runs_go_seed_by_seed_and_differ_by_nothing_but_seed_and_settings(tmp_path: Path) -> None:
    folders = [Path(shutil.copytree("config/study", tmp_path / name)) for name in "ab"]
    here, there = (
        shutil.copy("config/aflow_llm.yaml.example", folder / "m.yaml") for folder in folders
    )
    given = read(tmp_path, set={"grpo.steps": 3, "llm.file": str(here)})
    runs = runs_of(given, cells_of(given), tmp_path / "out")
    names = ["honest/seed_0", "wordy/seed_0", "honest/seed_1", "wordy/seed_1"]
    assert [run.name for run in runs] == names
    assert len({run.config_hash for run in runs}) == 4
    elsewhere = runs_of(given, cells_of(given), tmp_path / "elsewhere")
    assert [r.config_hash for r in elsewhere] == [r.config_hash for r in runs]
    moved = read(tmp_path, set={"grpo.steps": 3, "llm.file": str(there)})
    again = runs_of(moved, cells_of(moved), tmp_path / "out")
    assert [r.config_hash for r in again] == [r.config_hash for r in runs]  # by the file's name
    assert {r.former_hash for r in again}.isdisjoint(r.former_hash for r in runs)
    assert "grpo.steps=3" in runs[0].overrides and f"{STRENGTH}=0.9" in runs[1].overrides


def test_where_a_service_is_decides_no_result(tmp_path: Path) -> None:
    hashes = set()
    for port in (1, 2):
        served = {"name": "served", "set": {"judge.service.judge_url": f"http://host:{port}"}}
        arms = [{"name": "honest"}, served]
        given = read(tmp_path, arms=arms, claims=[])
        hashes |= {run.config_hash for run in runs_of(given, cells_of(given), tmp_path)}
    assert len(hashes) == 4  # arms and seeds


def test_doses_need_names_of_their_own(tmp_path: Path) -> None:
    doses = {"name": "w", "over": {"s": ["a b", "a/b"]}, "set": {"run.name": "${s}"}}
    arms = [{"name": "honest"}, doses]
    with pytest.raises(ConfigError, match="two doses are both called w@a_b"):
        cells_of(read(tmp_path, arms=arms, claims=[]))


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    claims = [
        CLAIM | {"id": "a", "measure": "final_goald"},
        CLAIM | {"id": "b", "measure": "onset"},
        CLAIM | {"id": "c", "direction": "none"},
        CLAIM | {"id": "c", "measure": "onset", "test": "log_rank", "threshold": 1},
    ]
    arms = [*ARMS, {"name": "wordy", "shortcut": "shout"}]
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, arms=arms, claims=claims, control="null", seeds=[1, 1])
    told = "\n".join(raised.value.problems)
    for words in (
        "arms: wordy is there twice",
        "seeds: 1 is there twice",
        "control: no arm 'null'; name one of honest, wordy",
        "arms.wordy.shortcut: no presentation 'shout'",
        "claims: c is there twice",
        "claims.a.measure: no 'final_goald'",
        "claims.b.test: permutation does not fit onset; use log_rank",
        "claims.c.threshold: none needs a margin",
        "claims.c: times have no threshold",
    ):
        assert words in told
    assert all(line.startswith(str(tmp_path)) for line in raised.value.problems)


def test_what_arms_and_claims_name_has_to_be_there(tmp_path: Path) -> None:
    arms = [*ARMS, {"name": "dosed", "over": {"x": [1], "y": [1, 2]}, "set": {STRENGTH: "${z}"}}]
    arms.append({"name": "mended", "remedy_for": "wordly"})
    given = read(
        tmp_path, arms=arms, claims=[CLAIM | {"arm": "dosed"}, CLAIM | {"id": "d", "against": "no"}]
    )
    with pytest.raises(ConfigError) as raised:
        cells_of(given)
    told = "\n".join(raised.value.problems)
    for words in (
        f"arms.dosed.set.{STRENGTH}: ${{z}} is not in over",
        "arms.dosed.over.x: nothing in set has ${x}",
        "claims.worse.arm: no 'dosed'",
        "claims.d.against: no 'no'",
        "arms.mended.remedy_for: no 'wordly'; one of honest, wordy",
    ):
        assert words in told


def test_what_train_py_would_refuse_is_told_once_with_its_arm(tmp_path: Path) -> None:
    arms = [*ARMS, {"name": "typo", "set": {"grpo.stepps": 3}}]
    given = read(tmp_path, arms=arms, seeds=3)
    with pytest.raises(ConfigError) as raised:
        runs_of(given, cells_of(given), tmp_path)
    (line,) = raised.value.problems
    assert line.startswith("arms.typo: ") and "grpo.stepps: unknown key" in line


def test_unknown_keys_and_a_variable_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="sedes: unknown key"):
        read(tmp_path, sedes=3)
    monkeypatch.setenv("STUDY_SEEDS", "5")
    assert read(tmp_path, seeds="${STUDY_SEEDS}").all_seeds == (0, 1, 2, 3, 4)


@pytest.mark.parametrize(
    "path", [p for p in SHIPPED if "arms:" in p.read_text()], ids=lambda p: p.name
)
def test_shipped_studies_are_valid(path: Path, tmp_path: Path) -> None:
    given = load_study(path)
    cells = cells_of(given)
    assert given.name == path.stem and len(cells) > 1
    if given.base.exists():
        one = given.model_copy(update={"seeds": 1})
        assert len(runs_of(one, cells, tmp_path)) == len(cells)
