"""Training scripts whose settings are environment variables, named as OpenJudge's and RuscaRL's
scripts name them: ``scripts/judge_training/run_*.sh``, ``scripts/instructions/verinstruct_*.sh``.

Variables become a command of ``train.py``. The standard library is enough.
"""

import difflib
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from flowright.config.suggestions import meaning
from flowright.core.errors import UserError

Method = Literal["supervised", "grpo", "rubric", "verif"]

SCRIPTS: Mapping[str, tuple[Method, str]] = {
    "judge_training/run_sft.sh": ("supervised", "config/judge_sft.yaml"),
    "judge_training/run_bradley_terry.sh": ("supervised", "config/judge_bradley_terry.yaml"),
    "judge_training/run_pointwise.sh": ("grpo", "config/judge_pointwise.yaml"),
    "judge_training/run_pairwise.sh": ("grpo", "config/judge_pairwise.yaml"),
    "instructions/verinstruct_RL.sh": ("rubric", "config/verinstruct_rl.yaml"),
    "instructions/verinstruct_RL_verif.sh": ("verif", "config/verinstruct_rl_verif.yaml"),
    "instructions/verinstruct_RuscaRL.sh": ("rubric", "config/verinstruct_ruscarl.yaml"),
    "instructions/verinstruct_RuscaRL_verif.sh": (
        "verif",
        "config/verinstruct_ruscarl_verif.yaml",
    ),
}

HEAD = """\
bash scripts/{script} [--dry-run] [--check] [--resume] [--config FILE] [key=value ...]

Runs train.py with {config} and the settings of these environment variables. Unset
variables leave the file's value; key=value comes last and wins (docs/configuration.md).
--dry-run prints the command and runs nothing; --check has train.py check all and train nothing.

"""
SERVER = """\
The judge's server; none of it is written into the command:
  VLLM_BASE_URL                  up to and with /v1; several with commas
  VLLM_MODEL                     its name there
  VLLM_API_KEY                   or OPENAI_API_KEY, DASHSCOPE_API_KEY; several with commas
  VLLM_STREAM                    true for servers that only stream; set for DashScope automatically
  VLLM_MAX_TOKENS, VLLM_TEMPERATURE, VLLM_TIMEOUT   of its replies, and seconds of a request

"""
MODEL_AND_FILES = """\
  MODEL_PATH                     strategy_model
  TRAIN_FILE, VAL_FILE           {section}.train_files, {section}.val_files
"""
VERIF = """\
  RUBRIC_FILE                    RuscaRL: rubrics to show (instructions.scaffolding.files)
  VERIF_SKIP_RULES               1 (default): the judge decides rules; 0: their code runs in the
                                 sandbox. VERIF_IGNORE_RULES=1: they are left out
  VERIF_API_URL, VERIF_MODEL_NAME   as VLLM_BASE_URL and VLLM_MODEL, before these
  VERIF_LLM_MAX_TOKENS, VERIF_LLM_TEMPERATURE   judge.max_tokens, judge.temperature
  VERIF_LLM_MAX_RETRIES          judge.max_attempts, less the first
  VERIF_LLM_BACKEND              vllm or openai: one client asks both
"""
RUN = """\
  SAVE_PATH                      the run directory: run.output_dir and run.name
  PROJECT_NAME, EXPERIMENT_NAME  the same without SAVE_PATH: outputs/PROJECT, EXPERIMENT
"""
JUDGES = """\
  TRAIN_BATCH_SIZE               grpo.prompts_per_step, over all processes
  TOTAL_EPOCHS                   judging.epochs
  LR                             grpo.learning_rate
"""
SUPERVISED = """\
  MAX_LENGTH                     policy.max_prompt_tokens
  MICRO_BATCH_SIZE               grpo.micro_batch_tokens, times MAX_LENGTH (default 4096)
"""
SAMPLED = """\
  MAX_PROMPT_LENGTH              policy.max_prompt_tokens
  MAX_RESPONSE_LENGTH            policy.max_new_tokens
  MICRO_BATCH_SIZE               grpo.micro_batch_tokens, times the sum of both (4096 + {response})
  ROLLOUT_N                      grpo.group_size
  KL_LOSS_COEF                   grpo.kl_coefficient
  PPO_MINI_BATCH_SIZE            grpo.minibatches: TRAIN_BATCH_SIZE divided by it
  GPU_MEMORY_UTILIZATION         a note: launch_vllm_safe.sh has it as GPU_MEMORY
"""
INSTRUCTIONS = """\
  VERIF_MAX_THREADS, GRADER_MAX_WORKERS   llm.max_concurrency
  TRAIN_BATCH_SIZE               grpo.prompts_per_step, over all processes
  TOTAL_STEPS, TOTAL_EPOCHS      grpo.steps, instructions.epochs
  LR                             grpo.learning_rate
"""
TAIL = """\
  LORA_RANK                      policy.lora.rank; 0: policy.train full
  LORA_ALPHA, LORA_TARGET_MODULES   policy.lora.alpha, policy.lora.target_modules (all-linear)
  SAVE_FREQ, TEST_FREQ           run.checkpoint_every, evaluation.every; in steps
  STRATEGY                       fsdp or fsdp2: policy.sharded, with several processes
  N_GPUS_PER_NODE                processes of a node (default: 1)
  N_NODES, or WORLD_SIZE         nodes (default: 1); with RANK, MASTER_ADDR, MASTER_PORT by torchrun
  RAY_ADDRESS                    train.py --ray on that cluster (ray.address)
"""
JUDGES_TAIL = """\
  SP_SIZE                        1 to 8, a note: sequences are not split among GPUs, see below
  VAL_BATCH_SIZE, VAL_BEFORE_TRAIN, LOGGER   a note: always done here

SP_SIZE: upstream splits a long sequence among GPUs. Here a sequence is computed on one, alone if
it is longer than grpo.micro_batch_tokens, and its layers recomputed backward; policy.sharded and
policy.offload make room. docs/running_on_gpus.md has the longest that fits by the plan.
"""
INSTRUCTIONS_TAIL = """\
  VLLM_METRICS_ENABLED, VLLM_STRICT_OPENAI_COMPAT, VAL_BEFORE_TRAIN, LOGGER   a note: always done
  MIN_INTERVAL_S                 refused: llm.max_concurrency bounds the requests
"""
PYTHON = "PYTHON names the Python (default: .venv of the checkout, else python3).\n"

_PROCESSES = ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT", "RAY_ADDRESS")
_SAMPLED_ONLY = ("MAX_PROMPT_LENGTH", "MAX_RESPONSE_LENGTH", "ROLLOUT_N", "KL_LOSS_COEF",
                 "PPO_MINI_BATCH_SIZE", "GPU_MEMORY_UTILIZATION")  # fmt: skip
_NOT_SETTINGS = ("CUDA_VISIBLE_DEVICES", "OPENAI_API_KEY", "OPENAI_BASE_URL")
"""Variables under names of other trainers' keys that other programs read."""

_LORA_LAYERS = "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"


def usage(script: str) -> str:
    """The --help text of a script, such as ``judge_training/run_sft.sh``."""
    method, config = SCRIPTS[script]
    judges = method in ("supervised", "grpo")
    parts = [HEAD.format(script=script, config=config)]
    parts += [] if judges else [SERVER]
    parts.append(MODEL_AND_FILES.format(section="judging" if judges else "instructions"))
    parts += [VERIF] if method == "verif" else []
    parts += [RUN, JUDGES] if judges else [RUN, INSTRUCTIONS]
    parts.append(
        SUPERVISED if method == "supervised" else SAMPLED.format(response=2048 if judges else 4096)
    )
    return "".join([*parts, TAIL, JUDGES_TAIL if judges else INSTRUCTIONS_TAIL, PYTHON])


def names_in(text: str) -> set[str]:
    """The variables that a help text names."""
    return {*re.findall(r"\b(?:[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|LR|LOGGER|STRATEGY|RANK)\b", text)}


@dataclass(slots=True)
class TrainingCommand:
    """A command of ``train.py`` as it is put together from variables. ``before``: words before
    ``train.py``; ``environment``: variables to set for it; ``overrides``: the user's key=value."""

    variables: Mapping[str, str]
    overrides: Sequence[str] = ()
    before: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    def has(self, name: str) -> str:
        """The value of a variable, or nothing."""
        return self.variables.get(name, "")

    def key(self, key: str, value: object) -> None:
        self.keys.append(f"{key}={value}")

    def whole(self, name: str, least: int, most: int | None = None, key: str = "") -> int | None:
        """A whole number, also as a key; None if it is unset or, which is a problem, out of
        bounds."""
        if not (value := self.has(name)):
            return None
        if not re.fullmatch("[0-9]{1,9}", value) or not least <= int(value) <= (most or 10**9):
            bound = f", up to {most}" if most else ""
            self.problems.append(f"{name}={value}: a whole number from {least} on{bound}")
            return None
        if key:
            self.key(key, value)
        return int(value)

    def number(self, name: str, key: str = "") -> None:
        """A number that is not negative, as a key."""
        if not (value := self.has(name)):
            return
        if not re.fullmatch(r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", value):
            self.problems.append(f"{name}={value}: a number such as 2e-6")
        elif key:
            self.key(key, yaml_number(value))

    def note(self, name: str, text: str) -> None:
        if value := self.has(name):
            self.notes.append(f"{name}{text.format(value=value)}")

    def translate(self, method: Method) -> None:
        """Turn every variable into a key, a note or a problem."""
        if model := self.has("MODEL_PATH"):
            self.key("strategy_model", yaml_text(model))
        if method in ("supervised", "grpo"):
            self._judge(method)
        else:
            self._instructions(method)
        self.note("VAL_BEFORE_TRAIN", ": the before/after table has the untrained policy")
        self.note("LOGGER", ": metrics.jsonl and TensorBoard are always written (run.tensorboard)")
        self._processes()

    def _judge(self, method: Method) -> None:
        self._files("judging", ("TRAIN_FILE", "VAL_FILE"))
        self._run_directory()
        self.whole("TRAIN_BATCH_SIZE", 1, key="grpo.prompts_per_step")
        self.whole("TOTAL_EPOCHS", 1, key="judging.epochs")
        self.number("LR", "grpo.learning_rate")
        self._note_low_rate()
        if method == "supervised":
            length = self.whole("MAX_LENGTH", 1, key="policy.max_prompt_tokens") or 4096
            if size := self.whole("MICRO_BATCH_SIZE", 1):
                self.key("grpo.micro_batch_tokens", size * length)
            for name in _SAMPLED_ONLY:
                self.note(name, ": of GRPO, unused here")
        else:
            self._sampling(2048, 96)
            self.note("MAX_LENGTH", ": of SFT and Bradley-Terry, unused here")
        self._adapter_and_intervals()
        if (self.whole("SP_SIZE", 1, 8) or 1) > 1:
            self.note(
                "SP_SIZE",
                "={value}: sequences are not split among GPUs; policy.sharded and policy.offload "
                "make room for longer ones",
            )
        if self.whole("VAL_BATCH_SIZE", 1):
            self.note("VAL_BATCH_SIZE", ": every row of VAL_FILE counts, in batches of any size")

    def _note_low_rate(self) -> None:
        """An adapter learns at ten times the rate of all weights (Schulman et al., LoRA Without
        Regret), which the variable's usual values are for."""
        full = self.has("LORA_RANK") == "0" or "policy.train=full" in self.overrides
        with suppress(ValueError):
            if not full and 0 < float(self.has("LR")) < 1e-5:
                self.note("LR", "={value}: a rate for all weights (LORA_RANK=0); the adapter that "
                          "is trained here learns at ten times that")  # fmt: skip

    def _instructions(self, method: Method) -> None:
        self._files("instructions", ("TRAIN_FILE", "VAL_FILE", "RUBRIC_FILE"))
        if (rubrics := self.has("RUBRIC_FILE")) and method == "verif":
            self.key("instructions.scaffolding.files", f"[{yaml_text(rubrics)}]")
        elif rubrics:
            self.notes.append("RUBRIC_FILE: of the verif scripts, unused here")
        if method == "verif" and not (
            self.has("VERIF_SKIP_RULES") or self.has("VERIF_IGNORE_RULES")
        ):
            self.key("instructions.rules", "skip")
        self._judge_server()
        self._run_directory()
        self.whole("TRAIN_BATCH_SIZE", 1, key="grpo.prompts_per_step")
        self.whole("TOTAL_STEPS", 1, key="grpo.steps")
        self.whole("TOTAL_EPOCHS", 1, key="instructions.epochs")
        self.number("LR", "grpo.learning_rate")
        self._sampling(4096, 64)
        self._adapter_and_intervals()

    def _files(self, section: str, names: Sequence[str]) -> None:
        for name in names:
            if not (path := self.has(name)):
                continue
            if not Path(path).is_file():
                self.problems.append(f"{name}={path}: no such file")
            if name != "RUBRIC_FILE":
                self.key(f"{section}.{name.lower()}s", f"[{yaml_text(path)}]")

    def _judge_server(self) -> None:
        """Addresses and API keys stay in the environment, where the YAML files read them."""
        given, added = self.has, self.environment
        secrets = ("VLLM_API_KEY", "OPENAI_API_KEY", "DASHSCOPE_API_KEY")
        added["VLLM_BASE_URL"] = given("VERIF_API_URL") or given("VLLM_BASE_URL")
        added["VLLM_MODEL"] = given("VERIF_MODEL_NAME") or given("VLLM_MODEL")
        added["VLLM_API_KEY"] = next(filter(None, map(given, secrets)), "")
        if re.search(r"aliyuncs\.com.*/compatible-mode", added["VLLM_BASE_URL"]):
            added["VLLM_STREAM"] = given("VLLM_STREAM") or "true"
        chosen = any(override.startswith("judge.model=") for override in self.overrides)
        if not added["VLLM_BASE_URL"] and not chosen:
            self.notes.append(
                "VLLM_BASE_URL: not set, the judge is expected at http://localhost:8000/v1"
            )
        self.whole("VLLM_MAX_TOKENS", 1)
        self.number("VLLM_TIMEOUT")
        self.number("VLLM_TEMPERATURE")
        self.whole("VERIF_LLM_MAX_TOKENS", 1, key="judge.max_tokens")
        self.number("VERIF_LLM_TEMPERATURE", "judge.temperature")
        if (retries := self.whole("VERIF_LLM_MAX_RETRIES", 0)) is not None:
            self.key("judge.max_attempts", retries + 1)
        self.whole("GRADER_MAX_WORKERS", 1, key="llm.max_concurrency")
        self.whole("VERIF_MAX_THREADS", 1, key="llm.max_concurrency")
        if (backend := given("VERIF_LLM_BACKEND")) not in ("", "vllm", "openai"):
            self.problems.append(f"VERIF_LLM_BACKEND={backend}: vllm or openai")
        if pause := given("MIN_INTERVAL_S"):
            self.problems.append(
                f"MIN_INTERVAL_S={pause}: requests are not paced by time; leave it out, and set "
                "llm.max_concurrency=1 for one at a time"
            )
        self.note("VLLM_METRICS_ENABLED", ": the servers' load is always in servers/*")
        self.note("VLLM_STRICT_OPENAI_COMPAT", ": only the protocol's own fields are ever sent")

    def _run_directory(self) -> None:
        project, experiment = self.has("PROJECT_NAME"), self.has("EXPERIMENT_NAME")
        if save := self.has("SAVE_PATH"):
            path = save.removesuffix("/") + (f"/{experiment}" if experiment else "")
            folder, slash, name = path.rpartition("/")
            if name in ("", ".", ".."):
                self.problems.append(f"SAVE_PATH={save}: name a folder")
            self.key("run.output_dir", yaml_text(folder or ("/" if slash else ".")))
            self.key("run.name", yaml_text(name))
            return
        if project:
            self.key("run.output_dir", yaml_text(f"outputs/{project}"))
        if experiment:
            self.key("run.name", yaml_text(experiment))

    def _sampling(self, response: int, batch: int) -> None:
        """``response`` and ``batch``: defaults of MAX_RESPONSE_LENGTH and TRAIN_BATCH_SIZE."""
        prompt = self.whole("MAX_PROMPT_LENGTH", 1, key="policy.max_prompt_tokens") or 4096
        response = self.whole("MAX_RESPONSE_LENGTH", 1, key="policy.max_new_tokens") or response
        if size := self.whole("MICRO_BATCH_SIZE", 1):
            self.key("grpo.micro_batch_tokens", size * (prompt + response))
        self.whole("ROLLOUT_N", 2, key="grpo.group_size")
        self.number("KL_LOSS_COEF", "grpo.kl_coefficient")
        if size := self.whole("PPO_MINI_BATCH_SIZE", 1):
            given = self.has("TRAIN_BATCH_SIZE")
            batch = int(given) if given.isdigit() else batch
            if batch % size:
                self.problems.append(
                    f"PPO_MINI_BATCH_SIZE={size}: does not divide TRAIN_BATCH_SIZE {batch}"
                )
            else:
                self.key("grpo.minibatches", batch // size)
        text = ": of a vLLM server, which launch_vllm_safe.sh starts with GPU_MEMORY={value}"
        self.note("GPU_MEMORY_UTILIZATION", text)

    def _adapter_and_intervals(self) -> None:
        self._adapter()
        self.whole("SAVE_FREQ", 1, key="run.checkpoint_every")
        self.whole("TEST_FREQ", 0, key="evaluation.every")

    def _adapter(self) -> None:
        rank = self.whole("LORA_RANK", 0)
        if rank == 0:
            self.key("policy.train", "full")
            self.note("LORA_ALPHA", ": there is no adapter with LORA_RANK=0")
            return
        if rank is not None:
            self.key("policy.train", "lora")
            self.key("policy.lora.rank", rank)
        self.whole("LORA_ALPHA", 1, key="policy.lora.alpha")
        if not (given := self.has("LORA_TARGET_MODULES")):
            return
        modules = re.sub(r"[\[\]\"' ]", "", given)
        modules = _LORA_LAYERS if modules == "all-linear" else modules
        if re.fullmatch(r"[A-Za-z0-9_.]+(,[A-Za-z0-9_.]+)*", modules):
            self.key("policy.lora.target_modules", f"[{modules.replace(',', ', ')}]")
        else:
            self.problems.append(
                f"LORA_TARGET_MODULES={given}: all-linear, or names such as q_proj,v_proj"
            )

    def _processes(self) -> None:
        """The number of processes, and the words and options that start them."""
        gpus = self.whole("N_GPUS_PER_NODE", 1, 1024) or 1
        world = self.whole("WORLD_SIZE", 1, 65536)
        count = self.whole("N_NODES", 1, 65536)
        if count and world and count != world:
            self.problems.append(
                f"N_NODES={count} and WORLD_SIZE={world}: both are the number of nodes"
            )
        nodes = count or world or 1
        self.whole("MASTER_PORT", 1, 65535)
        rank = self.whole("RANK", 0) or 0
        if rank >= nodes:
            self.problems.append(f"RANK={rank}: of {nodes} nodes the last is {nodes - 1}")
        several = gpus * nodes > 1
        port = self.has("MASTER_PORT")
        if address := self.has("RAY_ADDRESS"):
            self.options.append("--ray")
            self.key("ray.address", yaml_text(address))
            if any(map(self.has, ("N_GPUS_PER_NODE", "N_NODES", "WORLD_SIZE"))):
                self.key("ray.workers", gpus * nodes)
            else:
                several = True  # ray.workers has their number
        elif several:
            self.before = ["-m", "torch.distributed.run", f"--nproc_per_node={gpus}"]
            if nodes > 1:
                master = self.has("MASTER_ADDR")
                self.before += [f"--nnodes={nodes}", f"--node_rank={rank}"]
                self.before.append(f"--master_addr={master or '127.0.0.1'}")
                self.before.append(f"--master_port={port or 29500}")
                if not master:
                    self.problems.append(
                        f"MASTER_ADDR: of {nodes} nodes each has to know the first one's"
                    )
            else:
                self.before.append(f"--master_port={port}" if port else "--standalone")
        self._sharding(several)

    def _sharding(self, several: bool) -> None:
        strategy = self.has("STRATEGY")
        if strategy not in ("", "fsdp", "fsdp2"):
            self.problems.append(f"STRATEGY={strategy}: fsdp or fsdp2")
        elif strategy and several:
            self.key("policy.sharded", "true")
            if strategy == "fsdp":
                self.notes.append("STRATEGY=fsdp: PyTorch's FSDP2 is used")
        else:
            self.note("STRATEGY", "={value}: one process has all the weights, nothing is split")


def main(root: Path, arguments: Sequence[str]) -> int:
    """Run a script of the checkout ``root``: its path below ``scripts/``, then its arguments. The
    exit status of --help and --dry-run; else this process becomes ``train.py``. Raises UserError
    with every impossible value."""
    script, *words = arguments
    name = Path(script).name
    method, config = SCRIPTS[script]
    config, dry, more = str(root / config), False, []
    while words:
        word = words.pop(0)
        if word in ("-h", "--help"):
            print(usage(script), end="")
            return 0
        if word == "--dry-run":
            dry = True
        elif word in ("--check", "--resume"):
            more.append({"--check": "--dry-run"}.get(word, word))
        elif word == "--config":
            if not words:
                raise UserError("--config: name a file")
            config = words.pop(0)
        elif word.startswith("-"):
            raise UserError(f"{name}: no option {word}; see --help")
        elif re.match("[A-Z0-9_]+=", word):
            raise UserError(f"{word}: write it before the command: {word} bash {name}")
        elif "=" in word:
            more.append(word)
        else:
            raise UserError(f"{name}: {word}: write key=value, or see --help")
    for line in warnings(script, os.environ):
        print(f"warning: {line}", file=sys.stderr)
    command = TrainingCommand(os.environ, more)
    command.translate(method)
    if command.problems:
        raise UserError(*command.problems)
    for note in command.notes:
        print(f"note: {note}", file=sys.stderr)
    train = [str(root / "train.py"), "--config", config]
    words = [sys.executable, *command.before, *train, *command.options, *command.keys, *more]
    print(shlex.join(words), flush=True)
    if dry:
        return 0
    # The variables count nodes; train.py would take them for those of torchrun.
    kept = {name: value for name, value in os.environ.items() if name not in _PROCESSES}
    added = {name: value for name, value in command.environment.items() if value}
    return os.execve(sys.executable, words, {**kept, **added})


def warnings(script: str, variables: Mapping[str, str]) -> list[str]:
    """Variables that may be misspelt names of the script's, or belong to verl."""
    group = [other for other in SCRIPTS if other.split("/")[0] == script.split("/")[0]]
    known = sorted(set.union(*(names_in(usage(other)) for other in group)))
    lines = []
    for name in sorted(variables):
        if name.isupper() and len(name) > 4 and name not in known:
            for near in difflib.get_close_matches(name, known, 1, 0.86):
                lines.append(f"{name} is not known here; did you mean {near}?")
        if "_" in name and name not in (*known, *_NOT_SETTINGS) and (there := meaning(name)):
            lines.append(f"{name} is not read here{there}")
        if name.startswith("CUSTOM_"):
            lines.append(f"{name} names a function of verl; it is ignored")
    return lines


def yaml_number(text: str) -> str:
    """A number as YAML 1.1 reads one: with a point, and a sign in the exponent."""
    mantissa, _, exponent = text.lower().partition("e")
    mantissa = mantissa if "." in mantissa else f"{mantissa}.0"
    mantissa = f"0{mantissa}" if mantissa.startswith(".") else mantissa
    if not exponent:
        return mantissa
    return f"{mantissa}e{exponent if exponent[0] in '+-' else f'+{exponent}'}"


def yaml_text(text: str) -> str:
    """A text as YAML reads one, quoted if it would be anything else."""
    plain = re.fullmatch("[A-Za-z_./~-][A-Za-z0-9_./@+-]*", text)
    if plain and not re.fullmatch("true|false|null|yes|no|on|off|~", text):
        return text
    return "'" + text.replace("'", "''") + "'"
