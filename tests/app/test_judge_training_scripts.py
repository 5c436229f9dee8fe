"""scripts/judge_training/*.sh: the command that each makes of its variables, and what it says."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flowright.app.training_variables import names_in
from flowright.environments.registry import load_config

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts/judge_training"
ALL_METHODS = (
    "MODEL_PATH TRAIN_FILE VAL_FILE SAVE_PATH PROJECT_NAME EXPERIMENT_NAME LR STRATEGY "
    "TRAIN_BATCH_SIZE VAL_BATCH_SIZE MICRO_BATCH_SIZE SP_SIZE TOTAL_EPOCHS N_GPUS_PER_NODE "
    "N_NODES WORLD_SIZE RANK MASTER_ADDR MASTER_PORT RAY_ADDRESS LORA_RANK LORA_ALPHA "
    "LORA_TARGET_MODULES SAVE_FREQ TEST_FREQ VAL_BEFORE_TRAIN LOGGER "
)
SAMPLED = (
    "MAX_PROMPT_LENGTH MAX_RESPONSE_LENGTH ROLLOUT_N KL_LOSS_COEF PPO_MINI_BATCH_SIZE "
    "GPU_MEMORY_UTILIZATION "
)
METHODS = ("sft", "bradley_terry", "pointwise", "pairwise")


def call(
    method: str, *arguments: str, root: Path = ROOT, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    kept = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    return subprocess.run(
        ["bash", str(root / f"scripts/judge_training/run_{method}.sh"), *arguments],
        env=kept | {"PYTHON": sys.executable} | variables,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


def command(method: str, *arguments: str, **variables: str) -> tuple[list[str], str]:
    """The words after the Python, and what was said."""
    done = call(method, "--dry-run", *arguments, **variables)
    assert done.returncode == 0, done.stderr
    words = shlex.split(done.stdout)
    assert words[0] == sys.executable
    return words[1:], done.stderr


@pytest.mark.parametrize("method", METHODS)
def test_without_variables_the_configuration_stands(method: str) -> None:
    config = str(ROOT / f"config/judge_{method}.yaml")
    assert command(method) == ([str(ROOT / "train.py"), "--config", config], "")


def test_sft_honours_every_variable(tmp_path: Path) -> None:
    train, val = tmp_path / "it's a.parquet", tmp_path / "val.jsonl"
    train.touch()
    val.touch()
    words, said = command(
        "sft",
        "grpo.steps=3",
        MODEL_PATH="./models/Qwen3-14B",
        TRAIN_FILE=str(train),
        VAL_FILE=str(val),
        SAVE_PATH="./checkpoints/sft/",
        TRAIN_BATCH_SIZE="96",
        MICRO_BATCH_SIZE="12",
        MAX_LENGTH="2048",
        SP_SIZE="8",
        TOTAL_EPOCHS="2",
        LR="2e-6",
        LORA_RANK="0",
        SAVE_FREQ="500",
        TEST_FREQ="0",
        VAL_BATCH_SIZE="192",
        LOGGER="['console','swanlab']",
    )
    assert words[3:] == [
        "strategy_model=./models/Qwen3-14B",
        f"judging.train_files=['{tmp_path}/it''s a.parquet']",
        f"judging.val_files=[{val}]",
        "run.output_dir=./checkpoints",
        "run.name=sft",
        "grpo.prompts_per_step=96",
        "judging.epochs=2",
        "grpo.learning_rate=2.0e-6",
        "policy.max_prompt_tokens=2048",
        "grpo.micro_batch_tokens=24576",  # 12 x 2048
        "policy.train=full",
        "run.checkpoint_every=500",
        "evaluation.every=0",
        "grpo.steps=3",
    ]
    assert [line.split()[1].partition("=")[0].rstrip(":") for line in said.splitlines()] == [
        "SP_SIZE",
        "VAL_BATCH_SIZE",
        "LOGGER",
    ]


def test_grpo_honours_every_variable() -> None:
    words, said = command(
        "pairwise",
        ROLLOUT_N="4",
        KL_LOSS_COEF=".001",
        MAX_PROMPT_LENGTH="4096",
        MAX_RESPONSE_LENGTH="1024",
        MICRO_BATCH_SIZE="2",
        TRAIN_BATCH_SIZE="48",
        PPO_MINI_BATCH_SIZE="24",
        GPU_MEMORY_UTILIZATION=".6",
        LORA_RANK="32",
        LORA_ALPHA="64",
        LORA_TARGET_MODULES="['q_proj', 'v_proj']",
        PROJECT_NAME="judges",
        EXPERIMENT_NAME="one",
        MAX_LENGTH="1",
        VAL_BEFORE_TRAIN="True",
    )
    assert words[3:] == [
        "run.output_dir=outputs/judges",
        "run.name=one",
        "grpo.prompts_per_step=48",
        "policy.max_prompt_tokens=4096",
        "policy.max_new_tokens=1024",
        "grpo.micro_batch_tokens=10240",  # 2 x (4096 + 1024)
        "grpo.group_size=4",
        "grpo.kl_coefficient=0.001",
        "grpo.minibatches=2",
        "policy.train=lora",
        "policy.lora.rank=32",
        "policy.lora.alpha=64",
        "policy.lora.target_modules=[q_proj, v_proj]",
    ]
    assert "GPU_MEMORY=.6" in said and "MAX_LENGTH: of SFT and Bradley-Terry" in said


def test_what_is_written_is_read_as_the_configuration_means_it() -> None:
    """Those keys that every run has."""
    words, _ = command(
        "pointwise",
        MODEL_PATH="123",
        SAVE_PATH="a/no",
        LR="1e-06",
        KL_LOSS_COEF="0",
        LORA_TARGET_MODULES="all-linear",
        RAY_ADDRESS="10.0.0.3:6379",
    )
    config = load_config(ROOT / "config/quickstart.yaml", words[4:])
    assert config.strategy_model == "123" and config.run.name == "no"
    assert config.grpo.learning_rate == 1e-6 and config.grpo.kl_coefficient == 0
    assert len(config.policy.lora.target_modules) == 7
    assert config.ray.address == "10.0.0.3:6379"


@pytest.mark.parametrize(
    ("given", "before", "keys"),
    [
        ({"N_GPUS_PER_NODE": "8"}, ["--nproc_per_node=8", "--standalone"], []),
        (
            {"N_GPUS_PER_NODE": "2", "MASTER_PORT": "29501", "STRATEGY": "fsdp2"},
            ["--nproc_per_node=2", "--master_port=29501"],
            ["policy.sharded=true"],
        ),
        (
            {"N_GPUS_PER_NODE": "8", "WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "10.0.0.1"},
            [
                *("--nproc_per_node=8", "--nnodes=2", "--node_rank=1"),
                *("--master_addr=10.0.0.1", "--master_port=29500"),
            ],
            [],
        ),
    ],
)
def test_several_processes_by_torchrun(
    given: dict[str, str], before: list[str], keys: list[str]
) -> None:
    words, _ = command("bradley_terry", **given)
    config = str(ROOT / "config/judge_bradley_terry.yaml")
    train = [str(ROOT / "train.py"), "--config", config]
    assert words == ["-m", "torch.distributed.run", *before, *train, *keys]


@pytest.mark.parametrize(
    ("address", "joined"),
    [
        ("http://127.0.0.1:8265", "'http://127.0.0.1:8265'"),
        ("auto", "auto"),
        ("10.0.0.3:6379", "'10.0.0.3:6379'"),
    ],
)
def test_a_ray_cluster_is_joined(address: str, joined: str) -> None:
    words, _ = command("pointwise", RAY_ADDRESS=address, N_GPUS_PER_NODE="8", N_NODES="2")
    assert words[3:] == ["--ray", f"ray.address={joined}", "ray.workers=16"]


@pytest.mark.parametrize("method", ["sft", "bradley_terry"])
def test_the_base_of_an_adapter_is_split_and_so_are_weights_that_are_all_trained(
    method: str, tmp_path: Path
) -> None:
    given = {"STRATEGY": "fsdp2", "N_GPUS_PER_NODE": "2"}
    words, said = command(method, **given, TRAIN_FILE=str(ROOT / "README.md"))
    assert load_config(Path(words[words.index("--config") + 1]), words[-2:]).policy.sharded
    assert "policy.sharded=true" in words and said == ""
    full, _ = command(method, **given, LORA_RANK="0")
    assert full[-2:] == ["policy.train=full", "policy.sharded=true"]
    alone, _ = command(method, STRATEGY="fsdp2", LORA_RANK="0")
    assert alone[-1] == "policy.train=full"
    by_ray, _ = command(method, STRATEGY="fsdp2", RAY_ADDRESS="auto")
    assert by_ray[-1] == "policy.sharded=true"


def test_the_paths_of_openjudge_are_these_scripts() -> None:
    """``cd cookbooks/training_judge_model/sft`` and ``bash run_sft_rm.sh``, as its guide has it."""
    for folder, script, method in (
        ("sft", "run_sft_rm.sh", "sft"),
        ("bradley-terry", "run_bt_rm.sh", "bradley_terry"),
        ("grpo", "pointwise/run_pointwise.sh", "pointwise"),
        ("grpo", "pairwise/run_pairwise.sh", "pairwise"),
    ):
        done = subprocess.run(
            ["bash", script, "--dry-run"],
            cwd=ROOT / "cookbooks/training_judge_model" / folder,
            env={"PATH": os.environ["PATH"], "PYTHON": sys.executable},
            capture_output=True,
            text=True,
        )
        assert done.stdout and done.stdout == call(method, "--dry-run").stdout, done.stderr


def test_a_rate_for_all_weights_is_noted_where_an_adapter_is_trained() -> None:
    noted = "note: LR=2e-6: a rate for all weights (LORA_RANK=0)"
    assert call("bradley_terry", "--dry-run", LR="2e-6").stderr.startswith(noted)
    for more in ({"LR": "2e-5"}, {"LR": "2e-6", "LORA_RANK": "0"}):
        assert "LR" not in call("bradley_terry", "--dry-run", **more).stderr
    assert not call("sft", "--dry-run", "policy.train=full", LR="2e-6").stderr


def test_impossible_values_are_named_all_at_once(tmp_path: Path) -> None:
    done = call(
        "pointwise",
        SP_SIZE="9",
        LR="fast",
        TRAIN_FILE=str(tmp_path / "none.parquet"),
        STRATEGY="ddp",
        RANK="2",
        N_NODES="2",
        WORLD_SIZE="3",
        ROLLOUT_N="1",
        PPO_MINI_BATCH_SIZE="36",
        LORA_TARGET_MODULES="q proj;",
        MASTER_PORT="70000",
    )
    assert done.returncode == 2 and done.stdout == ""
    assert [line.partition("=")[0] for line in done.stderr.splitlines()] == [
        *("TRAIN_FILE", "LR", "ROLLOUT_N", "PPO_MINI_BATCH_SIZE", "LORA_TARGET_MODULES", "SP_SIZE"),
        *("N_NODES", "MASTER_PORT", "RANK"),
        *("MASTER_ADDR: of 2 nodes each has to know the first one's", "STRATEGY"),
    ]
    for bad in ("0", "-1", "2.5", "08x", "99999999999999999999"):
        assert call("sft", SP_SIZE=bad).stderr.startswith(f"SP_SIZE={bad}: a whole number from 1")


def test_names_that_are_nearly_ours_are_warned_of() -> None:
    given = {
        "TRAIN_BATCH_SIZES": "1",
        "MODELPATH": "x",
        "CUSTOM_REWARD_PATH": "y",
        "LOCAL_RANK": "0",
        "CPU_OFFLOAD": "true",
        "CLIP_GRAD": "2",
        "RAY_PORT": "6379",
        "OPENAI_API_KEY": "sk",
    }
    _, said = command("sft", **given)
    assert said.splitlines() == [
        "warning: CLIP_GRAD is not read here; did you mean grpo.max_grad_norm?",
        "warning: CPU_OFFLOAD is not read here; did you mean policy.offload?",
        "warning: CUSTOM_REWARD_PATH names a function of verl; it is ignored",
        "warning: MODELPATH is not known here; did you mean MODEL_PATH?",
        "warning: RAY_PORT is not read here; a Ray cluster is joined by --ray and ray.address, in "
        "scripts RAY_ADDRESS",
        "warning: TRAIN_BATCH_SIZES is not known here; did you mean TRAIN_BATCH_SIZE?",
    ]
    done = call("sft", "TRAIN_BATCH_SIZE=3")
    assert done.returncode == 2 and "write it before the command" in done.stderr
    assert call("sft", "--fast").returncode == call("sft", "fast").returncode == 2


@pytest.mark.parametrize("method", METHODS)
def test_help_has_every_variable_of_the_method(method: str) -> None:
    shown = call(method, "--help").stdout
    assert f"bash scripts/judge_training/run_{method}.sh" in shown
    assert f"config/judge_{method}.yaml" in shown
    names = {*ALL_METHODS.split(), *(SAMPLED if method.startswith("p") else "MAX_LENGTH").split()}
    assert names <= names_in(shown)


def test_the_command_is_run_where_it_was_called(tmp_path: Path) -> None:
    """With a stand-in for train.py, which tells what reached it."""
    root = tmp_path / "checkout"
    shutil.copytree(SCRIPTS, root / "scripts/judge_training")
    shutil.copy(ROOT / "scripts/environment.sh", root / "scripts")
    (root / "src").symlink_to(ROOT / "src")
    (root / "train.py").write_text(
        "import json, os, sys\n"
        "names = ('WORLD_SIZE', 'RANK', 'MASTER_PORT', 'TRAIN_BATCH_SIZE')\n"
        "kept = {name: os.environ[name] for name in names if name in os.environ}\n"
        "print(json.dumps([os.getcwd(), sys.argv[1:], kept])); sys.exit(7)\n"
    )
    here = tmp_path / "elsewhere"
    here.mkdir()
    given = {"WORLD_SIZE": "1", "RANK": "0", "TRAIN_BATCH_SIZE": "4"}
    options = ("--config", "mine.yaml", "--check", "--resume", "seed=1")
    done = call("sft", *options, root=root, cwd=here, **given)
    assert done.returncode == 7
    shown, told = done.stdout.splitlines()
    words = ["--config", "mine.yaml", "grpo.prompts_per_step=4", "--dry-run", "--resume", "seed=1"]
    assert json.loads(told) == [str(here), words, {"TRAIN_BATCH_SIZE": "4"}]
    assert shlex.split(shown)[2:] == words
