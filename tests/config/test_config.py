"""Configuration files: what is read, and what each mistake is told."""

import importlib.util
import json
import pickle
from pathlib import Path

import pytest

from flowright.config.loading import (
    comparable,
    keys_of,
    load_judge_server,
    load_models,
    read_yaml,
)
from flowright.config.root import Config
from flowright.config.suggestions import ELSEWHERE, meant, meant_within, unknown
from flowright.core.errors import ConfigError
from flowright.environments.registry import load_config, make_config
from flowright.runs.run_files import read_config

ROOT = Path(__file__).parents[2]
OFFLOAD = "did you mean policy.offload?"
CHUNKS = (
    "a sequence is not split among GPUs; policy.sharded and policy.offload make room for longer "
    "ones"
)
CONVERSATIONS = "conversations are read whole, from the column messages, or chosen and rejected"
RAY = "a Ray cluster is joined by --ray and ray.address, in scripts RAY_ADDRESS"
MODELS = "addresses and keys of models are in the file that llm.file names"


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str | bytes) -> Path:
        path = tmp_path / "mine.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def problems(path: Path, *overrides: str) -> list[str]:
    """What the file is told, its folder left out."""
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    assert all("\n" not in line for line in caught.value.problems)
    return [line.replace(f"{path.parent}/", "") for line in caught.value.problems]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("grpo: {stepz: 3}", "mine.yaml: grpo.stepz: unknown key; did you mean grpo.steps?"),
        ("polcy: {}", "mine.yaml: polcy: unknown key; did you mean policy?"),
        (
            "policy: {lora: {rnk: 3}}",
            "mine.yaml: policy.lora.rnk: unknown key; did you mean policy.lora.rank?",
        ),
        ("bananas: 1", "mine.yaml: bananas: unknown key"),
        ("grpo: {steps: many}", "mine.yaml: grpo.steps: input should be a valid integer"),
        ("grpo: {steps: 0}", "mine.yaml: grpo.steps: input should be greater than or equal to 1"),
        ("seed: 1.5", "mine.yaml: seed: input should be a valid integer"),
        ("seed: true", "mine.yaml: seed: this is not a key for true or false (got True)"),
        (
            "physical_gpus: [-1]",
            "mine.yaml: physical_gpus.0: input should be greater than or equal",
        ),
        ("policy: {dtype: fp16}", "policy.dtype: input should be 'float32' or 'bfloat16'"),
        ("grpo: {learning_rate: .nan}", "grpo.learning_rate: input should be a finite number"),
        ("grpo: 3", "mine.yaml: grpo: a section is expected, with keys of its own (got 3)"),
        ("grpo:", "mine.yaml: grpo: a section is expected, with keys of its own"),
        ("physical_gpus: 0", "mine.yaml: physical_gpus: a list is expected, such as [0, 1]"),
        ("seed: 1\nrun: {name: a}\nseed: 2", "mine.yaml:3: seed is there twice"),
        ("grpo: {kl_coefficient: .inf}", "grpo.kl_coefficient: input should be a finite number"),
        ("run: {name: ''}", "mine.yaml: run.name: the name of a folder under output_dir"),
        ("run: {name: ../x}", "mine.yaml: run.name: the name of a folder under output_dir"),
        (f"run: {{name: {'x' * 300}}}", "has no / and at most 200 bytes"),
        (
            "policy: {sampler: vllm, lora: {rank: 600}, vllm: {model_name: x}}",
            "mine.yaml: policy: lora.rank 600 with sampler vllm, which takes 512 at most",
        ),
        (
            "policy: {sampler: vllm}",
            "mine.yaml: policy.vllm.model_name: name the model that the servers have",
        ),
        (
            "policy: {vllm: {base_urls: [localhost:8003]}}",
            "mine.yaml: policy.vllm.base_urls: not the address of a server, such as http://local",
        ),
        ("policy: {vllm: {max_loras: 1}}", "policy.vllm.max_loras: input should be greater than"),
        ("reward: {wrong: 2}", "mine.yaml: reward: must be ordered invalid <= crashed <= wrong"),
        ("- a list", "mine.yaml: the top level is a list, not a mapping"),
        ("seed: [1", "mine.yaml:1: expected ',' or ']'"),
        ("seed: 1\nrun: a: b", "mine.yaml:2: mapping values are not allowed here"),
        (b"\xff\xfe", "mine.yaml: not UTF-8 at byte 0"),
        ('!!python/object/apply:os.system ["true"]', "mine.yaml:1: could not determine a constr"),
        ("seed: 2024-13-45", "mine.yaml: month must be in 1..12"),
        ("seed: !!int many", "mine.yaml: invalid literal for int"),
        ("seed: 1\0", "mine.yaml: unacceptable character #x0000"),
        ("grpo: &a {b: *a}", "mine.yaml: a value that holds itself"),
        (
            "".join(
                f"x{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" if i else "x: &a0 1\n" for i in range(30)
            ),
            "mine.yaml: a value that holds itself, or anchors for more than 100,000 values",
        ),
        ("", "mine.yaml: no key in it"),
        ("# later\n---\n", "mine.yaml: no key in it"),
        (
            "judge: {service: {judge_url: 'http://me:secret@host/v1'}}",
            "judge.service.judge_url: a user or password in an address would stand in records and "
            "messages; leave them out, and give the server's key as api_key (got 'http://...@host/v1')",
        ),
        (
            "policy: {vllm: {base_urls: ['http://me:secret@host/v1']}}",
            "policy.vllm.base_urls: a user or password in an address would stand in records",
        ),
        ("a: " + "[" * 5000 + "]" * 5000, "mine.yaml: too deeply nested"),
        (
            "strategy_model: ''",
            "strategy_model: string should have at least 1 character",
        ),
        ("seed: ${FLOWRIGHT_NO_SUCH}", "mine.yaml: seed: the environment has no FLOWRIGHT_NO_SUCH"),
    ],
)
def test_a_mistake_is_told_in_one_line(write, text: str | bytes, told: str) -> None:
    (line,) = problems(write(text))
    assert told in line


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("learning_rate", "did you mean grpo.learning_rate?"),
        ("LR", "did you mean grpo.learning_rate?"),
        ("grpo.lr", "did you mean grpo.learning_rate?"),
        ("batch-size", "did you mean grpo.prompts_per_step or grpo.group_size?"),
        ("num_gpus", "did you mean physical_gpus?"),
        ("model_name", "did you mean strategy_model?"),
        ("judge.model_name", "did you mean judge.model?"),
        ("kl_coef", "did you mean grpo.kl_coefficient?"),
        ("use_wandb", "did you mean run.loggers?"),
        ("run.report_to", "did you mean run.loggers?"),
        ("use_tensorboard", "TensorBoard files are written where run.tensorboard is true"),
        ("wandb_project", "did you mean run.project?"),
        ("output_dir", "did you mean run.output_dir?"),
        ("policy.group_size", "did you mean grpo.group_size?"),
        ("dataset", "did you mean train_dataset or val_dataset?"),
        ("learningrate", "did you mean grpo.learning_rate?"),
        ("warmup_steps_ratio", "did you mean grpo.warmup_share?"),
        ("clip_grad", "did you mean grpo.max_grad_norm?"),
        ("grpo.clip_grad", "did you mean grpo.max_grad_norm?"),
        ("lr_scheduler", "did you mean grpo.schedule?"),
        ("weight_decay", "did you mean grpo.weight_decay?"),
        ("max_length", "did you mean policy.max_prompt_tokens?"),
        ("micro_batch_size_per_gpu", "did you mean grpo.micro_batch_tokens?"),
        ("enable_gradient_checkpointing", "did you mean policy.gradient_checkpointing?"),
        ("STRATEGY", "did you mean policy.sharded?"),
        ("RAY_PORT", RAY),
        ("truncation", "did you mean judging.overlong or instructions.overlong?"),
        ("total_epochs", "did you mean grpo.steps or judging.epochs or instructions.epochs?"),
        ("cpu_offload", OFFLOAD),
        ("param_offload", OFFLOAD),
        ("SP_SIZE", CHUNKS),
        ("messages_key", CONVERSATIONS),
        ("no_proxy", MODELS),
        ("reward.type", "a judge service is judge.service here: {judge_url: ..., api_key: ...}"),
        (
            "reward.config",
            "its keys are judge.service's, but for fallback_to_rule (judge.mode: "
            "judge_with_rule_fallback), cache_size (judge.cache_size) and circuit_breaker_* "
            "(judge.breaker_*)",
        ),
        ("pineapples", None),
    ],
)
def test_an_unknown_key_is_told_where_it_lives(write, key: str, hint: str | None) -> None:
    (line,) = problems(write("{}"), f"{key}=1")
    assert line == f"command line: {key}: unknown key{f'; {hint}' if hint else ''}"


def test_a_section_of_another_trainer_is_told_key_by_key(write) -> None:
    """The blocks of OpenJudge's guide, verl's, and what is no such section."""
    data = "data: {max_length: 4096, truncation: right, multiturn: {enable: true}}"
    assert [line.partition(": ")[2] for line in problems(write(data))] == [
        "data.max_length: unknown key; did you mean policy.max_prompt_tokens?",
        "data.truncation: unknown key; did you mean judging.overlong or instructions.overlong?",
        f"data.multiturn: unknown key; {CONVERSATIONS}",
    ]
    optim = "optim: {lr: 2e-6, weight_decay: 0.001, clip_grad: 2.0, betas: [0.9, 0.99], 7: {8: 9}}"
    assert [line.partition(": ")[2] for line in problems(write(optim))] == [
        "optim: unknown key; the optimizer is AdamW, its keys are grpo's",
        "optim.lr: unknown key; did you mean grpo.learning_rate?",
        "optim.weight_decay: unknown key; did you mean grpo.weight_decay?",
        "optim.clip_grad: unknown key; did you mean grpo.max_grad_norm?",
    ]
    key = "actor_rollout_ref.actor.fsdp_config.param_offload"
    assert problems(write("{}"), f"{key}=true") == [f"command line: {key}: unknown key; {OFFLOAD}"]
    (line,) = problems(write("polcy: {lr: 1}"))
    assert line.endswith("polcy: unknown key; did you mean policy?")
    (line,) = problems(write('models: {"big": {model_name: x}}'))
    assert line.endswith(f"models: unknown key; {MODELS}")
    loop: dict[str, object] = {}
    loop["optim"] = loop
    assert meant_within(["data"], loop, {"grpo.steps"})


def test_suggestions_name_keys_that_there_are() -> None:
    keys = {*keys_of(Config), "judging.epochs", "instructions.epochs"}
    keys |= {"judging.overlong", "instructions.overlong"}
    named = [key for found in ELSEWHERE.values() if not isinstance(found, str) for key in found]
    assert named and set(named) <= keys
    assert unknown("grpo", keys) is None and unknown("grpo.steps", keys) is None
    # A judge service has no policy: what it lacks is not suggested.
    assert meant(["model"], {"judge", "judge.model"}) == "; did you mean judge.model?"


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("grpo.stepz=3", "command line: grpo.stepz: unknown key; did you mean grpo.steps?"),
        ("grpo.steps=x", "command line: grpo.steps: input should be a valid integer"),
        ("grpo.steps", "command line: 'grpo.steps': write key=value, such as grpo.steps=10"),
        ("=3", "command line: '=3': write key=value"),
        ("seed=2024-13-45", "command line: seed: '2024-13-45' is not YAML: month must be in 1..12"),
        ('run.name="a\\0b"', "command line: run.name: the name of a folder"),
        ("physical_gpus=[0", "command line: physical_gpus: '[0' is not YAML: expected ',' or ']'"),
        ("seed.x=3", "command line: seed: input should be a valid integer"),
    ],
)
def test_a_mistake_on_the_command_line_is_told_so(write, override: str, told: str) -> None:
    (line,) = problems(write("seed: 1"), override)
    assert told in line


def test_all_mistakes_are_told_at_once(write) -> None:
    path = write("seed: x\ngrpo: {stepz: 3, group_size: 1}\nreward: {cost_weight: 2}\n")
    lines = problems(path, "run.nam=a", "policy")
    assert len(lines) == 6
    for key in ("seed", "grpo.stepz", "grpo.group_size", "reward.cost_weight", "run.nam", "policy"):
        assert any(f" {key}:" in line or f"'{key}'" in line for line in lines), key


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    assert problems(tmp_path / "none.yaml") == ["none.yaml: No such file or directory"]
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(tmp_path)


def test_an_empty_mapping_is_the_default_configuration(write) -> None:
    assert load_config(write("{}")) == make_config()


def test_overrides_replace_values_and_leave_the_rest(write) -> None:
    path = write("grpo: {steps: 5, group_size: 4}\n")
    config = load_config(
        path, ["grpo.steps=7", "policy.lora.rank=8", "physical_gpus=[0, 3]", "judge.model=null"]
    )
    assert (config.grpo.steps, config.grpo.group_size, config.policy.lora.rank) == (7, 4, 8)
    assert config.physical_gpus == (0, 3) and config.judge.model is None
    assert load_config(path, ["grpo={steps: 9}"]).grpo.group_size == make_config().grpo.group_size
    assert load_config(path, ["judge.model="]).judge.model == ""
    assert load_config(path, ["run.name=2024"]).run.name == "2024"


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        make_config().grpo.steps = 3  # pyright: ignore[reportAttributeAccessIssue]


def test_variables_are_read_from_the_environment(write) -> None:
    path = write("a: ${A}\nb: '${B:-two} and ${A}'\nc: ['${C:-}', {d: '${A}-${A}'}]\n")
    read = read_yaml(path, {"A": "7", "C": "x: y"})
    # A value that is one variable has the type that YAML gives it; text never becomes structure
    # of the file around it.
    assert read == {"a": 7, "b": "two and 7", "c": [{"x": "y"}, {"d": "7-7"}]}
    assert read_yaml(path, {"A": "@[secret", "C": ""})["a"] == "@[secret"  # YAML of no kind


def test_a_missing_variable_is_told_with_its_key(write) -> None:
    with pytest.raises(ConfigError) as caught:
        read_yaml(write("run: {name: '${A}'}\nlist: [1, '${B}']"), {})
    assert [line.partition("mine.yaml: ")[2] for line in caught.value.problems] == [
        "run.name: the environment has no A; set it or write ${A:-default}",
        "list.1: the environment has no B; set it or write ${B:-default}",
    ]


def test_the_key_of_a_judge_service_is_optional_where_it_is_sent(
    write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that needs it answers 401; a server's own key and a model's are still mistakes."""
    monkeypatch.delenv("JUDGE_MODEL_API_KEY", raising=False)
    key = "api_key: '${JUDGE_MODEL_API_KEY}'"
    config = load_config(write(f"judge: {{service: {{judge_url: http://localhost:8888, {key}}}}}"))
    assert config.judge.service is not None and not config.judge.service.api_key
    with pytest.raises(ConfigError, match="the environment has no JUDGE_MODEL_API_KEY"):
        load_judge_server(write(f"{{server: {{{key}}}, judge: {{model: simulated}}}}"))
    with pytest.raises(ConfigError, match="the environment has no JUDGE_MODEL_API_KEY"):
        load_models(write(f"models: {{big: {{base_url: http://a/v1, model_name: m, {key}}}}}"))


def test_the_judge_guides_section_is_answered_as_one(write) -> None:
    told = problems(write("reward: {type: judge_model, config: {judge_url: a, api_key: b, n: 1}}"))
    assert [line.split(":")[1].strip() for line in told] == ["reward.type", "reward.config"]


def test_models_are_read_by_name(write) -> None:
    models = load_models(
        write("models: {big: {base_url: [http://a/v1, http://b/v1], model_name: m, api_key: k}}")
    )
    assert models["big"].base_urls == ("http://a/v1", "http://b/v1")
    assert models["big"].api_keys == ("k",)


def test_mistakes_in_the_file_of_models_are_told(write) -> None:
    with pytest.raises(ConfigError) as caught:
        load_models(write("models: {big: {base_ur: http://a/v1, model_name: m}}"))
    told = "\n".join(caught.value.problems)
    assert "models.big.base_url: field required" in told
    assert "models.big.base_ur: unknown key; did you mean models.big.base_url?" in told


def test_the_documentation_is_the_configuration() -> None:
    script = ROOT / "scripts/write_config_docs.py"
    spec = importlib.util.spec_from_file_location("write_config_docs", script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    assert written == module.page(), "run python scripts/write_config_docs.py"
    for key in ("`grpo.group_size` (int≥2, ", "`evaluation.samples`", "`api_key`"):
        assert key in written


def test_a_nucleus_takes_no_weights_of_whole_samples() -> None:
    cut = {"top_p": 0.9}
    for grpo in ({"off_policy": "sequence_masked"}, {"loss": "gspo"}):
        with pytest.raises(ValueError, match="nucleus masses"):
            Config.model_validate({"policy": cut, "grpo": grpo})
        assert Config.model_validate({"grpo": grpo})
    for grpo in ({"loss": "gspo", "off_policy": "ignored"}, {"off_policy": "truncated"}, {}):
        assert Config.model_validate({"policy": cut, "grpo": grpo})


def test_the_policys_servers_are_asked_for_the_policy_and_their_key_is_not_kept() -> None:
    served = {"sampler": "vllm", "vllm": {"base_urls": ["http://a:1/v1/"], "api_key": "secret"}}
    config = make_config({"strategy_model": "Qwen/Qwen2.5-7B", "policy": served})
    assert config.served_policy == "Qwen/Qwen2.5-7B"
    assert config.policy.vllm.base_urls == ("http://a:1/v1",)
    assert "secret" not in config.model_dump_json()


def test_a_judge_services_key_is_not_kept_but_reaches_other_processes() -> None:
    judge = {"service": {"judge_url": "http://a:1", "api_key": "secret"}}
    config = make_config({"judge": judge})
    assert "secret" not in config.model_dump_json()
    assert pickle.loads(pickle.dumps(config)) == config  # as the processes of a cluster get it


def test_servers_have_the_warm_started_model_where_there_is_one(write):
    smollm2 = "strategy_model: smollm2-135m\npolicy: {sampler: vllm"
    (line,) = problems(write(f"{smollm2}}}"))
    assert "policy.vllm.model_name" in line and "smollm2-135m is a folder" in line
    config = load_config(write(f"{smollm2}, warm_start: {{folder: data/cache/warm}}}}"))
    assert config.served_policy == "data/cache/warm"


def test_settings_know_what_they_were_read_from_and_are_compared_without_it(write):
    path = write("seed: 3\n")
    config = load_config(path, ["grpo.steps=9", "run.name=two words"])
    told = f"{path} grpo.steps=9 'run.name=two words'"
    assert config.source == config.on("cpu").source == told
    assert pickle.loads(pickle.dumps(config)).source == told
    given = {"seed": 3, "grpo": {"steps": 9}, "run": {"name": "two words"}}
    assert config == make_config(given) != load_config(path)
    assert make_config().source == "FILE"


def test_an_evaluation_says_what_it_measures_by() -> None:
    assert make_config(val_dataset="data/mine.jsonl").held_out_from == "data/mine.jsonl"
    small = load_config(ROOT / "config/instructions_small.yaml")
    assert small.held_out_from == "held out of a known rule (synthetic), rewarded by rubric"
    files = ["instructions.data=files", "instructions.train_files=[a.jsonl]"]
    given = [*files, "instructions.val_files=[b.jsonl, c.jsonl]"]
    shown = load_config(ROOT / "config/instructions_small.yaml", given).held_out_from
    assert shown == "b.jsonl, c.jsonl"


def test_sections_of_other_environments_are_checked_and_left_out(write) -> None:
    (line,) = problems(write("judging: {methd: sft}"))
    assert line.endswith("judging.methd: unknown key; did you mean judging.method?")
    config = load_config(write("judging: {method: sft}\npresentation: {train: 5}\nseed: 3"))
    assert config == make_config(seed=3) and "judging" not in config.model_dump()
    (line,) = problems(write("environment: [1]"))
    assert "environment: input should be a valid string" in line


def test_a_runs_file_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    kept = json.loads(make_config(seed=3).model_dump_json())
    kept |= {
        "judging": {"method": "pairwise", "show_left_out": 3},
        "instructions": {"reward": "rubric", "show_left_out": 3},
        "presentation": {"train": 2000},
    }
    kept["policy"]["vllm"]["load_seconds"] = 120.0
    kept["plan"] |= {"trainer_gpus": 2}
    kept["policy"]["warm_start"] |= {"least_passed": 0.5, "completions_per_prompt": 4}
    (tmp_path / "config.json").write_text(json.dumps(kept))
    assert load_config(tmp_path / "config.json") == make_config(seed=3)
    now = json.loads(make_config(seed=3).model_dump_json())
    assert comparable(read_config(tmp_path), now) == now
    (tmp_path / "mine.yaml").write_text("judging: {show_left_out: 3}")
    assert "judging.show_left_out: unknown key" in problems(tmp_path / "mine.yaml")[0]
