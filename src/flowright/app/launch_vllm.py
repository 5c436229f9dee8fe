"""Start, check or stop a vLLM server: ``bash launch_vllm_safe.sh``. The standard library is enough,
so that any Python can run it before the requirements are installed.
"""

import fcntl
import json
import multiprocessing
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flowright.core.errors import UserError

say = partial(print, flush=True)

LLM_FILE = "config/aflow_llm.yaml"

USAGE = """\
bash launch_vllm_safe.sh [executor|policy] [--replicas N] [--tp2] [--dry-run | --status | --stop]
                         [-- VLLM_ARGUMENT...]

  executor      the large model that answers operators and judges (the default)
  policy        the small model that writes workflows, with exchangeable adapters
  --replicas N  N servers with equal shares of _GPUS, on _PORT, _PORT + 100, _PORT + 200 ...; prints
                the setting that gives their addresses to the trainer
  --tp2         two GPUs a server, with vLLM's own GPU_MEMORY and MAX_BATCHED_TOKENS
  --dry-run     run every check and print the command; start and install nothing
  --status      print the state; exit 0 if all serve, 3 if not
  --stop        stop the servers that this script started, and nothing else

Starting makes .venv-vllm if needed, checks model, GPU memory and port, starts `vllm serve` in the
background and waits until it serves. If the right model is served already, it exits 0.
Log and process id are in outputs/vllm/. Arguments after -- go to `vllm serve` unchanged.
Exit code: 0 it serves; 1 the server failed; 2 something must be fixed before it can start.

Environment variables, EXECUTOR_... for the executor and POLICY_... for the policy:

                          executor                policy
  ..._MODEL               openai/gpt-oss-120b     Qwen/Qwen2.5-7B-Instruct
                          a folder, or a Hugging Face id; also the name it is served under.
                          Before the default: model_name of the entry of config/aflow_llm.yaml
                          whose base_url has this port of this machine
  ..._HOST                127.0.0.1               127.0.0.1
  ..._PORT                8002                    8003
  ..._API_KEY             (none)                  (none)
  ..._DEVICE              gpu                     gpu         cpu: a vLLM that is built for CPUs
  ..._GPUS                CUDA_VISIBLE_DEVICES, or as many as are needed, from 0 on for the
                          executor and from 1 on for the policy; numbers as in nvidia-smi
  ..._TENSOR_PARALLEL     all GPUs of a server    the same
  ..._GPU_MEMORY          0.95                    0.90        share of each GPU's memory
  ..._MAX_MODEL_LEN       32768, cpu: 4096        8192, 4096  prompt and reply, in tokens, of all
                          turns of an attempt; never more than
                          the model's own config.json allows
  ..._MAX_BATCHED_TOKENS  1024                    (vLLM's)    cpu: 4096, or all of MAX_MODEL_LEN
  ..._REASONING_PARSER    openai_gptoss           (none)      only for GPT-OSS's model_type
  ..._CHAT_TEMPLATE       (none)                  (none)      as policy.chat_template
  ..._TRAIN               (none)                  lora        full: all weights (policy.train), by
                          vLLM's development endpoints, which ask for no key: keep HOST private
  ..._MAX_LORA_RANK       (none)                  64
  ..._MAX_LORAS           (none)                  2           as policy.vllm.max_loras
  ..._START_SECONDS       1800                    1800        timeout until it serves
  ..._STOP_SECONDS        60                      60          timeout before it is killed

An empty value leaves a flag out. With cpu, OMP_NUM_THREADS (1), VLLM_CPU_KVCACHE_SPACE (1, in GiB)
and VLLM_CPU_OMP_THREADS_BIND (nobind) are passed on. For both:
  VLLM_BIN                the vllm to run (default: .venv-vllm/bin/vllm, or one on PATH)
  VLLM_STATE_DIR          outputs/vllm
  PYTHON                  the Python that .venv-vllm is made with (default: python3)
"""

HINTS = """\
greater than the derived max_model_len~The model takes fewer tokens: lower {role}_MAX_MODEL_LEN to the number in that line.
max_num_batched_tokens.*smaller than max_model_len~Give {role}_MAX_BATCHED_TOKENS as many as {role}_MAX_MODEL_LEN, or lower that.
KV cache is needed, which is larger~The cache holds no request of that length: a shorter {role}_MAX_MODEL_LEN, more GPUs ({role}_GPUS); on a CPU a larger VLLM_CPU_KVCACHE_SPACE.
out of memory|no available memory for the cache blocks~Memory: more GPUs ({role}_GPUS), a shorter {role}_MAX_MODEL_LEN, or fewer {role}_MAX_BATCHED_TOKENS.
address already in use~Port {port} is in use: find its process (ss -ltnp 'sport = :{port}'), end it or set {role}_PORT.
attention heads.*divisible by tensor|not divisible by.*tensor.parallel~The model's heads cannot be divided so: set {role}_TENSOR_PARALLEL to a divisor of that number, such as 1, 2 or 4.
torchvision::nms~torchvision does not match this torch: uninstall torchvision, torchaudio and torchcodec beside this vLLM, which needs none of them.
does not recognize this architecture|architectures.*not supported|no supported architecture~This vLLM does not know the model's architecture: a newer vLLM, or another {role}_MODEL.
trust_remote_code=True~The model brings its own code: if you trust it, add -- --trust-remote-code.
unrecognized arguments|invalid choice~This vLLM does not know a flag: an empty variable of --help leaves it out.
failed to infer device type|no CUDA.*device|libcuda\\.so~This vLLM finds no GPU: see nvidia-smi; for one that is built for CPUs set {role}_DEVICE=cpu.
tiktoken|openai_harmony|HarmonyError~GPT-OSS needs its tiktoken files: offline, copy them and set TIKTOKEN_ENCODINGS_BASE.
gated repo|401 client error~Access to the model is restricted: request it on its page and set HF_TOKEN, or copy the model and set {role}_MODEL to its folder.
LocalEntryNotFound|offline mode|Max retries exceeded~The model cannot be downloaded: copy it here and set {role}_MODEL to its folder.
"""  # noqa: E501
"""Patterns of a log's known errors with their advice, the first match first."""

_DEFAULTS = {
    "MODEL": ("openai/gpt-oss-120b", "Qwen/Qwen2.5-7B-Instruct"),
    "HOST": ("127.0.0.1", "127.0.0.1"),
    "PORT": ("8002", "8003"),
    "API_KEY": ("", ""),
    "DEVICE": ("gpu", "gpu"),
    "GPU_MEMORY": ("0.95", "0.90"),
    "REASONING_PARSER": ("openai_gptoss", ""),
    "CHAT_TEMPLATE": ("", ""),
    "TRAIN": ("", "lora"),
    "MAX_LORA_RANK": ("", "64"),
    "MAX_LORAS": ("", "2"),
    "START_SECONDS": ("1800", "1800"),
    "STOP_SECONDS": ("60", "60"),
}


class VllmServer:
    """A server to start, check or stop, in the folder ``root``. ``me``: the command to print;
    ``number``: its place among replicas; ``problems``: everything that must be fixed before it can
    start."""

    def __init__(
        self,
        role: str,
        me: str,
        values: dict[str, str],
        variables: Mapping[str, str],
        extra: Sequence[str] = (),
        number: int = 0,
    ) -> None:
        self.role, self.me, self.values = role, me, values
        self.label = f"{role}-{number}" if number else role
        self.variables, self.extra = variables, extra
        self.name, self.model = role.upper(), values["MODEL"]
        self.gpus = [gpu for gpu in values["GPUS"].split(",") if gpu]
        self.on_cpu = values["DEVICE"] == "cpu"
        is_public = values["HOST"] in ("0.0.0.0", "::")
        host = "127.0.0.1" if is_public else values["HOST"]
        self.address = host, int(values["PORT"])
        self.base_url = f"http://{socket.gethostname() if is_public else host}:{values['PORT']}/v1"
        self.url = f"http://{host}:{self.address[1]}"
        self.served = f"{self.model} at {self.url}"
        self.state = Path(variables.get("VLLM_STATE_DIR") or "outputs/vllm")
        self.pid_file, self.log = (self.state / f"{self.label}.{end}" for end in ("pid", "log"))
        home = variables.get("HF_HOME") or f"{variables.get('HOME', '')}/.cache/huggingface"
        self.cache = Path(variables.get("HF_HUB_CACHE") or f"{home}/hub")
        self.vllm = ""
        self.problems: list[str] = []

    def say(self, text: str) -> None:
        say(f"{self.label}: {text}")

    # The process that this script started.

    def started(self) -> tuple[int, str]:
        """The process id and ``MODEL at URL`` of the server that was started here, if it is still
        that process; else 0."""
        with suppress(OSError, ValueError):
            pid, recorded, served, *_ = self.pid_file.read_text().splitlines()
            if identity(int(pid)) == recorded:
                return int(pid), served
        return 0, ""

    def end(self, pid: int) -> None:
        """Stop a server and its workers: SIGTERM to its process group, SIGKILL after the timeout. A
        group keeps its leader's number from being reused."""
        _signal_group(pid, signal.SIGTERM)
        seconds = int(self.values["STOP_SECONDS"])
        deadline = time.monotonic() + seconds
        while group_is_alive(pid) and time.monotonic() < deadline:
            time.sleep(0.2)
        if group_is_alive(pid):
            self.say(f"still running {seconds} s after SIGTERM: killed")
            _signal_group(pid, signal.SIGKILL)
        self.pid_file.unlink(missing_ok=True)

    # What answers at the address.

    def ask(self, path: str) -> str | None:
        """The body of a 200 reply, else None; without a proxy."""
        request = urllib.request.Request(f"{self.url}{path}")
        if key := self.values["API_KEY"]:
            request.add_header("Authorization", f"Bearer {key}")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with suppress(OSError, ValueError), opener.open(request, timeout=5) as reply:
            return reply.read().decode()
        return None

    def serves(self) -> bool:
        return self.port_is_taken() and self.ask("/health") is not None

    def served_models(self) -> list[str] | None:
        with suppress(ValueError, KeyError, TypeError):
            return [row["id"] for row in json.loads(self.ask("/v1/models") or "")["data"]]
        return None

    def port_is_taken(self) -> bool:
        with suppress(OSError), socket.create_connection(self.address, timeout=5):
            return True
        return False

    def ownership(self) -> str:
        if pid := self.started()[0]:
            return f" (process {pid}, log {self.log})"
        return " (not started by this script)"

    # Checks.

    def check_address(self) -> bool:
        """Return True if the right model is served already."""
        if not self.port_is_taken():
            return False
        port = self.address[1]
        models = self.served_models() if self.ask("/health") is not None else None
        if models is None:
            self.problems += [
                f"port {port}: taken by something that is no healthy model server;",
                f"  find its process: ss -ltnp 'sport = :{port}'; end it, or set {self.name}_PORT",
            ]
        elif self.model in models:
            self.say(f"{self.model} is served already at {self.url}/v1{self.ownership()}")
            return True
        else:
            self.problems += [
                f"port {port}: a server is there already, but it serves {', '.join(models)}, "
                f"not {self.model};",
                f"  end it, or set {self.name}_PORT",
            ]
        return False

    def find_vllm(self, own: Path) -> None:
        """Set ``vllm``: the named one, our own, one on PATH, or our own yet to be made."""
        if named := self.variables.get("VLLM_BIN"):
            self.vllm = named
            if shutil.which(named) is None:
                self.problems.append(f"VLLM_BIN: no such program: {named}")
            return
        self.vllm = str(own) if _is_program(own) else shutil.which("vllm") or str(own)
        if self.on_cpu and not _is_program(Path(self.vllm)):
            self.problems += [
                f"{self.name}_DEVICE=cpu: there is no vLLM; set VLLM_BIN to one that is built for "
                "CPUs,",
                "  or make one: VLLM_DEVICE=cpu bash scripts/setup_real_vllm.sh",
            ]

    def model_folder(self) -> Path | None:
        """The folder of the model: itself, or in the cache that vLLM reads."""
        if self.model.startswith("/"):
            folders = [Path(self.model)]
        else:
            name = f"models--{self.model.replace('/', '--')}"
            folders = [Path(self.model), *sorted(self.cache.glob(f"{name}/snapshots/*"))]
        return next((folder for folder in folders if (folder / "config.json").exists()), None)

    def fit_to_model(self) -> None:
        """Lower the length to the model's own, and drop a parser of another model type."""
        if (folder := self.model_folder()) is None:
            return
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            own = own_length(config)
        except (OSError, ValueError, TypeError, AttributeError):
            return
        asked, kind = self.values["MAX_MODEL_LEN"], config.get("model_type")
        if own and asked and int(asked) > own:
            self.say(f"{self.model} takes {own} tokens, not {asked}: --max-model-len is {own}")
            self.values["MAX_MODEL_LEN"] = str(own)
        if kind and kind != "gpt_oss" and self.values["REASONING_PARSER"] == "openai_gptoss":
            self.values["REASONING_PARSER"] = ""

    def check_model(self) -> None:
        label = self.values["MODEL_FROM"]
        if (template := self.values["CHAT_TEMPLATE"]) and not Path(template).is_file():
            self.problems.append(f"{self.name}_CHAT_TEMPLATE: no such file: {template}")
        if not self.model:
            self.problems.append(f"{label} is empty: give a folder or a Hugging Face id")
        elif self.model.startswith("/"):
            self.problems += [f"{label}: {line}" for line in folder_problems(Path(self.model))]
        elif folder := self.model_folder():
            lines = folder_problems(folder)
            self.problems += [f"{label}={self.model}: {line}" for line in lines]
        elif self.variables.get("HF_HUB_OFFLINE") == "1":
            self.problems += [
                f"{label}: {self.model} is not in {self.cache}, and HF_HUB_OFFLINE is set;",
                "  download it elsewhere and give its folder",
            ]
        else:
            self.say(f"{self.model} is not in {self.cache}; vLLM will download it first")

    def check_gpus(self) -> None:
        """vLLM needs its share of the whole memory free when it starts."""
        if shutil.which("nvidia-smi") is None:
            self.problems += [
                "no nvidia-smi: this machine has no NVIDIA GPU or no driver;",
                f"  for a vLLM that is built for CPUs set {self.name}_DEVICE=cpu",
            ]
            return
        if not self.gpus:
            self.problems.append(f"{self.name}_GPUS is empty: name the GPUs, such as 0 or 0,1")
        for gpu in self.gpus:
            query = ("--query-gpu=memory.total,memory.free,name", "--format=csv,noheader,nounits")
            status, line = _output("nvidia-smi", "-i", gpu, *query)
            if status:
                listed = re.sub(r" \(UUID.*", "", _output("nvidia-smi", "-L")[1]).splitlines()
                self.problems += [
                    f"GPU {gpu}: nvidia-smi does not know it; set {self.name}_GPUS",
                    f"  there are: {';'.join(listed)}",
                ]
                continue
            total, free, name = (*(part.strip() for part in line.split(",", 2)), "", "")[:3]
            if not (total.isdigit() and free.isdigit()):
                self.say(f"GPU {gpu} ({name}) does not report its free memory: not checked")
                continue
            need = int(int(total) * float(self.values["GPU_MEMORY"]))
            if int(free) < need:
                self.problems += [
                    f"GPU {gpu} ({name}): {free} of {total} MiB are free, {need} are needed",
                    f"  ({self.name}_GPU_MEMORY={self.values['GPU_MEMORY']}); end what runs there, "
                    f"lower the share, or set {self.name}_GPUS",
                ]
            else:
                self.say(f"GPU {gpu} ({name}): {free} of {total} MiB free")

    def report_problems(self) -> bool:
        if self.problems:
            lines = [f"{self.label}: must be fixed before it can start:", *self.problems]
            print(*lines, sep="\n  ", file=sys.stderr, flush=True)
        return bool(self.problems)

    # The command.

    def command(self) -> tuple[dict[str, str], list[str]]:
        """Environment variables and words."""
        values = self.values
        words = [self.vllm, "serve", self.model, "--host", values["HOST"], "--port", values["PORT"]]
        if self.on_cpu:
            usual = {"OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
            usual["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
            added = {name: self.variables.get(name) or usual[name] for name in usual}
            # With compilation or chunks, a seeded request ends the engine on CPUs.
            words += ["--enforce-eager", "--no-enable-chunked-prefill"]
        else:
            # Without the second, CUDA numbers the GPUs by speed and nvidia-smi by slot.
            added = {"CUDA_VISIBLE_DEVICES": values["GPUS"], "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
            words += _flag("--tensor-parallel-size", values["TENSOR_PARALLEL"])
            words += _flag("--gpu-memory-utilization", values["GPU_MEMORY"])
        for name in ("MAX_MODEL_LEN", "MAX_BATCHED_TOKENS", "REASONING_PARSER"):
            flag = {"MAX_BATCHED_TOKENS": "MAX_NUM_BATCHED_TOKENS"}.get(name, name)
            words += _flag(f"--{flag.lower().replace('_', '-')}", values[name])
        words += _flag("--chat-template", values["CHAT_TEMPLATE"])
        words.append("--enable-prefix-caching")
        exchanges = self.role == "policy" and values["TRAIN"] == "full"
        adapts = self.role == "policy" and not exchanges and values["MAX_LORA_RANK"]
        if exchanges:
            added["VLLM_SERVER_DEV_MODE"] = "1"
        if adapts:
            added["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
            words += ["--enable-lora", "--max-lora-rank", values["MAX_LORA_RANK"]]
            words += _flag("--max-loras", values["MAX_LORAS"])
        if exchanges or adapts:
            # The learner's ratio needs the log-probabilities of the distribution sampled from.
            words += ["--logprobs-mode", "processed_logprobs"]
        return added, [*words, *self.extra]

    def show_command(self) -> None:
        added, words = self.command()
        hidden = ["VLLM_API_KEY=..."] if self.values["API_KEY"] else []
        say("\n" + " ".join([*(f"{k}={v}" for k, v in added.items()), *hidden, shlex.join(words)]))

    # Starting.

    def start(self) -> int:
        """Start the server in a session of its own; the process id."""
        added, words = self.command()
        environment = {**self.variables, **added}
        if key := self.values["API_KEY"]:
            environment["VLLM_API_KEY"] = key  # not an argument, which every user can read
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        lines = str(process.pid), identity(process.pid) or "gone", self.served, self.values["HOST"]
        self.pid_file.write_text("".join(f"{line}\n" for line in lines))
        process.returncode = 0  # it outlives this process, which waits by its identity
        return process.pid

    def wait_until_served(self, pid: int) -> str:
        """Wait; the reason why it does not serve, or nothing."""
        began, shown = time.monotonic(), 0.0
        while True:
            if self.started()[0] != pid:
                return "ended before it served"
            if self.serves():
                break
            waited = time.monotonic() - began
            if waited >= int(self.values["START_SECONDS"]):
                seconds = self.values["START_SECONDS"]
                return f"not serving after {seconds} s ({self.name}_START_SECONDS)"
            if waited >= shown + 10:
                shown = waited
                say(f"  {waited:5.0f} s  {''.join(self.read_log().splitlines()[-1:])[:100]}")
            time.sleep(0.25)
        seconds = int(time.monotonic() - began)
        took = f"{seconds // 60} min {seconds % 60} s" if seconds >= 60 else f"{seconds} s"
        self.say(f"{self.model} is served at {self.url}/v1 (process {pid}, ready after {took})")
        say(f"stop it:  {self.me} {self.role} --stop")
        return ""

    def read_log(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def give_up(self, why: str, pid: int) -> int:
        """Print the end of the log with advice and stop what is left of the server."""
        lines = [f"{self.label}: {why}; the end of {self.log}:"]
        log = self.read_log()
        lines += [f"  | {line}" for line in log.splitlines()[-30:]]
        if advice := hint(log, self.name, self.address[1]):
            lines.append(f"  {advice}")
        print(*lines, sep="\n", file=sys.stderr, flush=True)
        self.end(pid)
        return 1


def main(root: Path, arguments: Sequence[str]) -> int:
    """Run the script of the checkout ``root``; the exit status. Raises UserError for a bad setting
    or an unknown argument."""
    script = root / "launch_vllm_safe.sh"
    me = f"bash {script.name if Path.cwd().samefile(root) else shlex.quote(str(script))}"
    role, action, extra, count, in_pairs = "executor", "start", [], 1, False
    words = list(arguments)
    while words:
        word = words.pop(0)
        if word in ("executor", "policy"):
            role = word
        elif word in ("--dry-run", "--status", "--stop"):
            action = word[2:]
        elif word == "--tp2":
            in_pairs = True
        elif word == "--replicas":
            if not words or not re.fullmatch("[1-9][0-9]?", words[0]):
                raise UserError("--replicas: give the number of servers, such as 3")
            count = int(words.pop(0))
        elif word == "--":
            extra, words = words, []
        elif word in ("-h", "--help"):
            say(USAGE, end="")
            return 0
        else:
            raise UserError(f"{word}: unknown; see {me} --help")
    os.chdir(root)
    variables = dict(os.environ)
    settings = read_settings(role, variables, root / LLM_FILE, count, in_pairs)
    servers = [VllmServer(role, me, each, variables, extra, i) for i, each in enumerate(settings)]
    own = root / ".venv-vllm/bin/vllm"
    if action in ("status", "stop"):
        servers = started_servers(servers[0])
    if action == "stop":
        return max(map(stop, servers))
    if action == "status":
        code = max(map(show_status, servers))
    elif action == "dry-run":
        code = max(dry_run(server, own) for server in servers)
    else:
        code = start_all(servers, root, own)
    if len(servers) > 1 and not code:
        urls = ",".join(server.base_url for server in servers)
        setting = "export EXECUTOR_URL={}" if role == "executor" else "policy.vllm.base_urls=[{}]"
        say(setting.format(urls))
    return code


def started_servers(first: VllmServer) -> list[VllmServer]:
    """The server; after a start with replicas, all with a state file, at the addresses in these."""
    state, role = first.state, first.role
    if not (replicas := sorted(state.glob(f"{role}-*.pid"))):
        return [first]
    found: list[VllmServer] = []
    for file in [*state.glob(f"{role}.pid"), *replicas]:
        with suppress(OSError, ValueError):  # about to be written, or removed
            served, host = file.read_text().splitlines()[2:]
            model, _, url = served.partition(" at ")
            values = first.values | {"MODEL": model, "HOST": host, "PORT": str(urlsplit(url).port)}
            number = int(file.stem.removeprefix(role).removeprefix("-") or 0)
            found.append(VllmServer(role, first.me, values, first.variables, number=number))
    return found or [first]


def start_all(servers: Sequence[VllmServer], root: Path, own: Path) -> int:
    """Start the servers, several at once, each in a process of its own; the highest exit status."""

    def start_one(server: VllmServer) -> int:
        with only_call(server):
            return start(server, root, own)

    if len(servers) == 1:
        return start_one(servers[0])
    fork = multiprocessing.get_context("fork")
    children = [fork.Process(target=lambda s=s: sys.exit(start_one(s))) for s in servers]
    for child in children:
        child.start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the children, too
    signal.signal(signal.SIGTERM, lambda *_: [child.terminate() for child in children])
    for child in children:
        child.join()
    return max(1 if (child.exitcode or 0) < 0 else child.exitcode or 0 for child in children)


def read_settings(
    role: str, variables: Mapping[str, str], models: Path, count: int, in_pairs: bool
) -> list[dict[str, str]]:
    """The values of a role's variables for each of ``count`` servers, by name without the prefix;
    MODEL_FROM is where MODEL, which the file of ``models`` may have, is set. ``in_pairs``: each has
    two GPUs. Raises UserError."""
    index, prefix = int(role == "policy"), f"{role.upper()}_"
    visible = variables.get("CUDA_VISIBLE_DEVICES")
    usual = {name: both[index] for name, both in _DEFAULTS.items()}
    usual["GPU_MEMORY"] = "0.90" if in_pairs else usual["GPU_MEMORY"]
    is_one_each = count > 1 and f"{prefix}GPUS" not in variables
    width = "2" if in_pairs else "1" if is_one_each else ""
    width = variables.get(f"{prefix}TENSOR_PARALLEL", width)
    total = count * int(width) if width.isdigit() else count
    usual["GPUS"] = visible or ",".join(map(str, range(index, index + total)))
    values = {name: variables.get(prefix + name, usual[name]) for name in usual}
    gpus = [gpu for gpu in values["GPUS"].split(",") if gpu]
    on_cpu = values["DEVICE"] == "cpu"
    length = "4096" if values["DEVICE"] != "gpu" else ("32768", "8192")[index]
    longest = values["MAX_MODEL_LEN"] = variables.get(f"{prefix}MAX_MODEL_LEN", length)
    checks = {
        "MAX_MODEL_LEN": (r"([1-9][0-9]*)?", "whole tokens"),
        "DEVICE": ("gpu|cpu", "gpu or cpu"),
        "TRAIN": ("(lora|full)?", "lora or full"),
        "PORT": ("[0-9]+", "not a port number"),
        "START_SECONDS": ("[0-9]+", "whole seconds"),
        "STOP_SECONDS": ("[0-9]+", "whole seconds"),
    }
    for name, (pattern, needed) in checks.items():
        if not re.fullmatch(pattern, values[name]):
            raise UserError(f"{prefix}{name}={values[name]}: {needed}")
    # What is not prefilled in chunks has to fit at once.
    batch = str(max(int(longest or 0), 4096)) if on_cpu else ("1024", "")[index or in_pairs]
    values["MAX_BATCHED_TOKENS"] = variables.get(f"{prefix}MAX_BATCHED_TOKENS", batch)
    share = int(width) if width.isdigit() else len(gpus) // count
    values["TENSOR_PARALLEL"] = variables.get(f"{prefix}TENSOR_PARALLEL", width or str(share))
    if count > 1 and not on_cpu and not 0 < share * count <= len(gpus):
        raise UserError(
            f"{prefix}GPUS={values['GPUS']}: {count} servers need {max(share, 1) * count} GPUs"
        )
    source = f"{prefix}MODEL"
    if source not in variables and (found := _model_at_port(models, values["PORT"], variables)):
        values["MODEL"], source = found[1], f"{LLM_FILE}: models.{found[0]}.model_name"
    model = values["MODEL"]
    if model.startswith("~"):
        model = f"{variables.get('HOME', '')}{model[1:]}"
    if model.startswith(("./", "../")):
        model = os.path.abspath(model)  # noqa: PTH100, symbolic links stay
    values |= {"MODEL": model, "MODEL_FROM": source}
    if count == 1:
        return [values]
    shares = [",".join(gpus[i * share : (i + 1) * share]) for i in range(count)]
    first = int(values["PORT"])
    return [values | {"PORT": str(first + 100 * i), "GPUS": g} for i, g in enumerate(shares)]


_HERE = ("localhost", "127.0.0.1", "0.0.0.0", "::1")


def _model_at_port(file: Path, port: str, variables: Mapping[str, str]) -> tuple[str, str] | None:
    """The name and the model_name, a folder or hub id, of the file's entry at a port of this
    machine; None unless there is exactly one such model."""
    if not file.is_file():
        return None
    try:
        from flowright.config.loading import expand, read_yaml
    except ImportError:  # before the requirements are installed
        say(f"{LLM_FILE} is not read: install the requirements, or name the model by a variable")
        return None
    models = read_yaml(file, expanded=False).get("models")
    found: dict[str, str] = {}
    for name, entry in models.items() if isinstance(models, dict) else ():
        with suppress(UserError, AttributeError, ValueError):  # mistakes are the trainer's to name
            keys = ("base_url", "model_name")
            url, model = expand({key: entry.get(key) for key in keys}, variables, "").values()
            address = urlsplit(str(url))
            if address.hostname in _HERE and str(address.port) == port and "/" in str(model):
                found.setdefault(str(model), str(name))
    return next((name, model) for model, name in found.items()) if len(found) == 1 else None


def show_status(server: VllmServer) -> int:
    pid, served = server.started()
    if pid and served != server.served:
        server.say(f"this script's server is {served}, process {pid}")
    if server.ask("/health") is not None:
        models = ",".join(server.served_models() or ())
        server.say(f"serves {models} at {server.url}/v1{server.ownership()}")
        return 0
    if pid:
        server.say(f"process {pid} runs but does not serve (yet), log {server.log}")
    else:
        server.say("not running")
    return 3


def stop(server: VllmServer) -> int:
    if pid := server.started()[0]:
        server.end(pid)
        server.say(f"stopped (process {pid})")
    else:
        server.pid_file.unlink(missing_ok=True)
        server.say("no server of this script is running; nothing was stopped")
    return 0


def look(server: VllmServer, own: Path) -> bool:
    """Run every check; True if the right model is served already."""
    if server.check_address():
        return True
    server.find_vllm(own)
    server.fit_to_model()
    server.check_model()
    if not server.on_cpu:
        server.check_gpus()
    return False


def dry_run(server: VllmServer, own: Path) -> int:
    if look(server, own):
        return 0
    if server.vllm == str(own) and not _is_program(own):
        server.say(".venv-vllm would be made first, from requirements-vllm.txt")
    server.show_command()
    return 2 if server.report_problems() else 0


def start(server: VllmServer, root: Path, own: Path) -> int:
    pid, served = server.started()
    if pid:  # of an earlier call, which did not see it ready
        if served != server.served:
            server.problems += [
                f"process {pid} of this script already is {served};",
                f"  first: {server.me} {server.role} --stop",
            ]
        elif server.ask("/health") is None:
            server.say(f"process {pid} is starting already; log {server.log}")
            if not (why := server.wait_until_served(pid)):
                return 0
            if "ended" not in why:
                return server.give_up(why, pid)
            server.end(pid)  # its workers may be left
            server.say(f"process {pid} has ended; starting another")
    if look(server, own):
        return 0
    if server.report_problems():
        return 2
    if server.vllm == str(own):
        make = (
            "source scripts/environment.sh; ensure_environment .venv-vllm vLLM "
            "requirements-vllm.txt -- -r requirements-vllm.txt"
        )
        if status := subprocess.run(["bash", "-euc", make], cwd=root).returncode:
            return status
    server.show_command()
    with interruptible():
        pid = 0
        try:
            pid = server.start()
            server.say(f"process {pid} is starting; log {server.log}")
            why = server.wait_until_served(pid)
        except KeyboardInterrupt:
            if not pid:
                raise
            why = "interrupted"
        return server.give_up(why, pid) if why else 0


@contextmanager
def only_call(server: VllmServer) -> Iterator[None]:
    """Wait for other calls about the same server to finish."""
    server.state.mkdir(parents=True, exist_ok=True)
    with (server.state / f"{server.label}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            server.say("another call is in progress; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt for SIGTERM, too."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def hint(log: str, role: str, port: int) -> str | None:
    """The advice for the first known error of a log."""
    for line in HINTS.splitlines():
        pattern, _, advice = line.partition("~")
        if re.search(pattern, log, re.IGNORECASE):
            return advice.format(role=role, port=port)
    return None


def own_length(config: Mapping[str, Any]) -> int:
    """The most tokens that a model's config.json allows, as vLLM reads it; 0 if unknown."""
    text: Mapping[str, Any] = config.get("text_config") or config
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    known = [text[k] for k in (*names, "max_sequence_length") if isinstance(text.get(k), int)]
    rope = text.get("rope_scaling") or text.get("rope_parameters") or {}
    kind, factor = rope.get("rope_type", rope.get("type")), rope.get("factor") or 1
    if known and kind == "yarn":
        known = [int(rope.get("original_max_position_embeddings", min(known)) * factor)]
    elif known and kind in ("linear", "dynamic"):
        known = [int(min(known) * factor)]
    return min(known, default=0)


def folder_problems(folder: Path) -> list[str]:
    """Missing parts of a model's folder: config.json, weights, or a file that its index names."""
    if not folder.is_dir():
        return [f"no such folder: {folder}"]
    if not (folder / "config.json").exists():
        return [f"{folder} has no config.json: not a model in the Hugging Face format"]
    if not any(folder.glob("*.safetensors")):
        return [f"{folder} has no *.safetensors: the weights are missing"]
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return []
    named = sorted({*re.findall(r'[^"/]*\.safetensors', index.read_text(encoding="utf-8"))})
    missing = [part for part in named if not (folder / part).exists()]
    if not missing:
        return []
    return [
        f"{folder} lacks {len(missing)} of its weight files, such as {missing[0]}; "
        "complete the download"
    ]


def identity(pid: int) -> str | None:
    """Boot id and start time of a process: a later one with the same number differs."""
    if (fields := _stat(pid)) is None or fields[0] == "Z":
        return None
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {fields[19]}"


def group_is_alive(pid: int) -> bool:
    """Return True if a process of the group that ``pid`` leads runs; zombies do not count."""
    try:
        os.killpg(pid, 0)
    except OSError:
        return False
    found = (_stat(int(path.name)) for path in Path("/proc").glob("[0-9]*"))
    return any(fields and fields[2] == str(pid) and fields[0] != "Z" for fields in found)


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the third on: the second, a name, may hold spaces."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return None


def _signal_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except OSError:
        with suppress(OSError):
            os.kill(pid, number)


def _output(*words: str) -> tuple[int, str]:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def _flag(name: str, value: str) -> list[str]:
    """A flag, left out if its value is empty."""
    return [name, value] if value else []


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
