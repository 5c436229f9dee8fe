"""Every file in config/ can be read, and names what exists."""

from pathlib import Path

import pytest

from flowright.config.loading import load_entries, load_models
from flowright.core.errors import ConfigError
from flowright.environments.registry import load_config

CONFIG = Path(__file__).parents[2] / "config"
MODELS = "aflow_llm.yaml"
NO_RUNS = {MODELS, "judge_server.yaml"}  # tests/judge_service/test_service.py reads the second
RUNS = sorted(path.name for path in CONFIG.glob("*.yaml") if path.name not in NO_RUNS)
RUNS += ["study/world.yaml", "study/workflow.yaml"]


@pytest.mark.parametrize("name", RUNS)
def test_a_shipped_configuration_is_valid(name: str) -> None:
    config = load_config(CONFIG / name)
    models = {*load_models(CONFIG.parent / config.llm.file), "simulated"}
    assert {config.aflow_executor_model, *filter(None, [config.judge_model])} <= models
    assert config.run.name == Path(name).stem
    if config.environment == "workflow":
        # The KL needs its base, and a group needs enough attempts to differ.
        assert config.grpo.kl_coefficient or config.grpo.kl_every
        assert config.grpo.group_size >= 8


def test_the_shipped_models_can_be_pointed_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EXECUTOR_URL", "EXECUTOR_API_KEY", "EXECUTOR_MODEL"):
        monkeypatch.delenv(name, raising=False)
    shipped = load_models(CONFIG / MODELS)["gpt-oss-120b"]
    assert shipped.base_urls == ("http://localhost:8002/v1",)
    assert shipped.model_name == "openai/gpt-oss-120b"
    monkeypatch.setenv("EXECUTOR_URL", "http://elsewhere:9000/v1")
    monkeypatch.setenv("EXECUTOR_MODEL", "/models/gpt-oss-120b")
    moved = load_models(CONFIG / MODELS)["gpt-oss-120b"]
    assert moved.base_urls == ("http://elsewhere:9000/v1",)
    assert moved.model_name == "/models/gpt-oss-120b"


def test_the_file_of_models_is_made_from_its_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    models = Path("config/aflow_llm.yaml")
    assert "gpt-oss-120b" in load_models(models), "away from a checkout: the package's"
    assert not models.exists()
    models.parent.mkdir()
    models.with_name("aflow_llm.yaml.example").write_text(
        "models: {a: {base_url: http://a/v1, model_name: a}}"
    )
    assert [*load_models(models)] == ["a"]
    models.write_text("models: {mine: {base_url: http://b/v1, model_name: b}}")
    assert [*load_models(models)] == ["mine"]
    with pytest.raises(ConfigError, match=r"aflow_llm.yaml: .*no 'b'.*aflow_llm.yaml.example"):
        load_entries(models, {"b"})


def test_the_ways_to_train_are_shipped() -> None:
    shipped = {"quickstart.yaml", "training.yaml", "mixed_simulated.yaml", "smollm2.yaml"}
    shipped |= {"canvas.yaml"}
    methods = ("sft", "bradley_terry", "pointwise", "pairwise")
    shipped |= {f"judge_{method}.yaml" for method in methods}
    shipped |= {f"judge_{method}_small.yaml" for method in methods}
    shipped |= {f"verinstruct_{way}.yaml" for way in ("rl", "ruscarl", "rl_verif", "ruscarl_verif")}
    shipped |= {"instructions_small.yaml", "instructions_constraints_smollm2.yaml"}
    shipped |= {"instructions_judge_smollm2.yaml"}
    assert shipped <= set(RUNS)
