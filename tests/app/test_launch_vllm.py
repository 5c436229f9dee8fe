"""launch_vllm_safe.sh against stand-ins for `vllm` and `nvidia-smi` in a house of its own."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from flowright.app.launch_vllm import hint
from flowright.config.loading import load_models
from flowright.environments.registry import load_config

ROOT = Path(__file__).parents[2]
MODEL = "openai/gpt-oss-120b"

VLLM = '''#!{python}
"""Stands in for vllm: `vllm serve MODEL --host H --port P`, with one worker process."""
import json, os, subprocess, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

mode, arguments = os.environ["STANDIN"], sys.argv[1:]
assert arguments[0] == "serve"
port = arguments[arguments.index("--port") + 1]
for path in (os.environ["STANDIN_SEEN"], os.environ["STANDIN_SEEN"] + "." + port):
    with open(path, "w") as seen:
        json.dump({{"arguments": arguments, "environment": dict(os.environ)}}, seen)
print("loading weights", flush=True)
forgotten = threading.Timer(600, lambda: os._exit(9))  # whatever a test forgets ends by itself
forgotten.daemon = True
forgotten.start()
if mode == "dies":
    sys.exit("torch.OutOfMemoryError: CUDA out of memory")
worker = subprocess.Popen(["sleep", "600"])
with open(os.environ["STANDIN_SEEN"] + ".worker", "w") as seen:
    print(worker.pid, file=seen)
if mode == "never":
    worker.wait()
if mode == "leaves":  # it does not serve any more, and ends when it is told
    while not os.path.exists(os.environ["STANDIN_SEEN"] + ".go"):
        time.sleep(0.05)
    worker.kill()
    sys.exit()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/v1/models" and os.environ.get("VLLM_API_KEY"):
            if self.headers["Authorization"] != "Bearer " + os.environ["VLLM_API_KEY"]:
                return self.send_error(401)
        body = json.dumps({{"data": [{{"id": arguments[1]}}]}}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"" if self.path == "/health" else body)

    def log_message(self, *_):
        pass


host = arguments[arguments.index("--host") + 1]
ThreadingHTTPServer((host, int(port)), Handler).serve_forever()
'''

NVIDIA_SMI = """#!/usr/bin/env bash
if [[ $1 == -L ]]; then
    echo 'GPU 0: NVIDIA H100 (UUID: GPU-a)'
elif [[ $1 == -i && $2 == [0-7] ]]; then
    echo "81559, ${FREE_MIB:-81000}, NVIDIA H100 80GB HBM3"
else
    echo 'No devices were found' >&2
    exit 6
fi
"""


class House:
    """A folder with the script, the stand-ins on PATH, and a port of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "scripts").mkdir()
        shutil.copy(ROOT / "launch_vllm_safe.sh", path)
        shutil.copy(ROOT / "scripts/environment.sh", path / "scripts")
        (path / "src").symlink_to(ROOT / "src")
        (path / "requirements-vllm.txt").write_text("")
        self.program("vllm", VLLM.format(python=sys.executable))
        self.program("nvidia-smi", NVIDIA_SMI)
        self.seen = path / "seen.json"
        self.environment = {
            "PATH": f"{path / 'bin'}:/usr/bin:/bin",
            "HOME": str(path),
            "PYTHON": sys.executable,
            "HF_HUB_CACHE": str(path / "hub"),
            "STANDIN": "healthy",
            "STANDIN_SEEN": str(self.seen),
            "EXECUTOR_PORT": str(free_port()),
        }

    def program(self, name: str, text: str) -> None:
        program = self.path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)

    def call(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", self.path / "launch_vllm_safe.sh", *arguments],
            env=self.environment | environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    def start(self, **environment: str) -> int:
        done = self.call(**environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return self.pid()

    def pid(self, role: str = "executor") -> int:
        return int((self.path / f"outputs/vllm/{role}.pid").read_text().split()[0])

    def has_worker(self) -> bool:
        path = Path(f"{self.seen}.worker")
        return path.exists() and bool(path.read_text())

    def worker(self) -> int:
        return int(Path(f"{self.seen}.worker").read_text())


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.call("--stop")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def free_ports(count: int) -> list[int]:
    """Ports 100 apart, and the one after the first, that are all free."""
    while True:
        first = free_port()
        ports = [first + 100 * i for i in range(count)]
        with ExitStack() as stack, suppress(OSError, OverflowError):
            for port in (*ports, first + 1):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return ports


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"  # dead, but not yet buried


def make_model(
    folder: Path, weights: tuple[str, ...] = ("model.safetensors",), **config: object
) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name in weights:
        (folder / name).write_text("{}")
    return folder


def test_the_executor_starts_serves_and_stops_with_its_workers(house: House) -> None:
    done = house.call()
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{MODEL} is served at http://127.0.0.1:{house.environment['EXECUTOR_PORT']}/v1" in (
        done.stdout
    )
    seen = json.loads(house.seen.read_text())
    flags = " ".join(seen["arguments"])
    for flag in (
        f"serve {MODEL}",
        "--tensor-parallel-size 1",
        "--gpu-memory-utilization 0.95",
        "--max-num-batched-tokens 1024",
        "--max-model-len 32768",
        "--reasoning-parser openai_gptoss",
        "--enable-prefix-caching",
    ):
        assert flag in flags
    assert "lora" not in flags
    assert seen["environment"]["CUDA_VISIBLE_DEVICES"] == "0"
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" not in seen["environment"]

    status = house.call("--status")
    assert (status.returncode, status.stderr) == (0, "")
    assert f"serves {MODEL}" in status.stdout and f"process {house.pid()}" in status.stdout

    server, worker = house.pid(), house.worker()
    assert is_running(server) and is_running(worker)
    assert house.call("--stop").stdout == f"executor: stopped (process {server})\n"
    assert not is_running(server) and not is_running(worker)
    assert house.call("--status").returncode == 3


def layouts() -> dict[str, str]:
    """The commands of the documented layouts, by the first comment."""
    text = (ROOT / "docs/running_on_gpus.md").read_text().partition("### Layouts")[2]
    blocks = re.findall(r"```bash\n# (.*?)\n(.*?)```", text.partition("\n### ")[0], re.DOTALL)
    return dict(blocks)


def trained_with(house: House, commands: str, **environment: str) -> tuple[list[str], list[str]]:
    """Run commands of a page with a stand-in for torchrun; what it was started with, and the
    executor's addresses in its environment."""
    house.program("torchrun", '#!/usr/bin/env bash\nprintf "%s\\n" "$EXECUTOR_URL" "$@" >trained\n')
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=house.path,
        env=house.environment | environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    urls, *arguments = (house.path / "trained").read_text().splitlines()
    return arguments, urls.split(",")


def seen_at(house: House, port: int) -> tuple[str, str]:
    """The arguments and the GPUs of the stand-in at a port."""
    seen = json.loads(Path(f"{house.seen}.{port}").read_text())
    return " ".join(seen["arguments"]), seen["environment"]["CUDA_VISIBLE_DEVICES"]


def test_the_documented_layout_of_eight_gpus_starts_as_written(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = free_ports(4)
    house.environment |= {"EXECUTOR_PORT": str(ports[0]), "POLICY_PORT": str(ports[0] + 1)}
    try:
        arguments, urls = trained_with(house, layouts()["8 GPUs"])
        assert urls == [f"http://127.0.0.1:{port}/v1" for port in ports[:3]]
        assert [seen_at(house, port)[1] for port in ports[:3]] == ["0", "1", "2"]
        policy, gpus = seen_at(house, ports[0] + 1)
        assert gpus == "3" and "--max-lora-rank 64 --max-loras 2" in policy
        config = load_config(ROOT / "config/training.yaml", arguments[5:])
        assert arguments[:3] == ["--nproc_per_node", "4", "train.py"]
        assert config.physical_gpus == (4, 5, 6, 7) and config.policy.sampler == "vllm"
        monkeypatch.setenv("EXECUTOR_URL", ",".join(urls))
        entry = load_models(ROOT / "config/aflow_llm.yaml")["gpt-oss-120b"]
        assert [*entry.base_urls] == urls

        pids = [house.pid(name) for name in ("executor", "executor-1", "executor-2")]
        status = house.call("--status")
        assert status.returncode == 0 and status.stdout.count("serves ") == 3
        os.kill(pids[1], signal.SIGKILL)
        assert house.call("--status").returncode == 3
        stopped = house.call("--stop").stdout
        assert [stopped.count(f"process {pid})") for pid in pids] == [1, 0, 1]
        assert not any(map(is_running, pids)) and is_running(house.pid("policy"))
    finally:
        house.call("policy", "--stop")


def test_the_documented_layout_of_two_nodes_starts_as_written(house: House) -> None:
    ports = free_ports(8)
    house.environment["EXECUTOR_PORT"] = str(ports[0])
    blocks = layouts()
    first = house.path / "first"
    trained_with(house, f"{{ {blocks['node A']} }} >{first}; torchrun", EXECUTOR_URL="")
    printed = first.read_text().splitlines()[-1]
    arguments, urls = trained_with(house, f"{printed}\n{blocks['node B']}")
    assert urls == [f"http://{socket.gethostname()}:{port}/v1" for port in ports]
    assert [seen_at(house, port)[1] for port in ports] == [*"01234567"]
    config = load_config(ROOT / "config/training.yaml", arguments[5:])
    assert config.physical_gpus == (*range(8),)


def test_two_gpus_a_server_take_vllms_own_batch(house: House) -> None:
    done = house.call("--dry-run", "--replicas", "2", "--tp2")
    commands = [line for line in done.stdout.splitlines() if " serve " in line]
    assert [line.split()[0] for line in commands] == [
        "CUDA_VISIBLE_DEVICES=0,1",
        "CUDA_VISIBLE_DEVICES=2,3",
    ]
    for line in commands:
        assert "--tensor-parallel-size 2 --gpu-memory-utilization 0.90 --max-model-len" in line
        assert "--max-num-batched-tokens" not in line
    visible = house.call("--dry-run", "--replicas", "3", CUDA_VISIBLE_DEVICES="2,3,4,5,6,7").stdout
    assert re.findall(r"CUDA_VISIBLE_DEVICES=(\S+) ", visible) == ["2", "3", "4"]
    alone = house.call("--dry-run", "--tp2", EXECUTOR_GPUS="4,5").stdout
    assert "CUDA_VISIBLE_DEVICES=4,5" in alone and "--tensor-parallel-size 2" in alone


@pytest.mark.parametrize(
    ("gpus", "words", "shares"),
    [
        ("4,5,6,7", ["--replicas", "2"], ["4,5", "6,7"]),
        ("4,5,6,7", ["--replicas", "3"], ["4", "5", "6"]),
        ("4,5,6", ["--replicas", "2", "--tp2"], "EXECUTOR_GPUS=4,5,6: 2 servers need 4 GPUs"),
        ("4", ["--replicas", "2"], "EXECUTOR_GPUS=4: 2 servers need 2 GPUs"),
        ("4", ["--replicas"], "--replicas: give the number of servers"),
    ],
)
def test_replicas_share_the_gpus(
    house: House, gpus: str, words: list[str], shares: list[str] | str
) -> None:
    done = house.call("--dry-run", *words, EXECUTOR_GPUS=gpus)
    if isinstance(shares, str):
        assert done.returncode == 2 and shares in done.stderr
    else:
        found = re.findall(r"CUDA_VISIBLE_DEVICES=(\S+) ", done.stdout)
        assert found == shares


def test_a_second_call_finds_the_server_and_starts_none(house: House) -> None:
    server = house.start()
    house.seen.unlink()
    again = house.call()
    assert again.returncode == 0
    assert f"{MODEL} is served already" in again.stdout and f"(process {server}" in again.stdout
    assert not house.seen.exists()


def test_another_model_than_the_running_one_is_refused(house: House) -> None:
    server = house.start()
    other = make_model(house.path / "other")
    done = house.call(EXECUTOR_MODEL=str(other))
    assert done.returncode == 2
    assert f"process {server} of this script already is {MODEL} at" in done.stderr
    assert f"it serves {MODEL}, not {other}" in done.stderr
    moved = house.call(EXECUTOR_PORT=str(free_port()))
    assert moved.returncode == 2 and "--stop" in moved.stderr
    assert is_running(server)


def test_the_policy_gets_all_weights_that_can_be_exchanged(house: House) -> None:
    done = house.call("policy", "--dry-run", POLICY_TRAIN="full", POLICY_PORT=str(free_port()))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "VLLM_SERVER_DEV_MODE=1" in done.stdout and "lora" not in done.stdout.lower()
    assert "--logprobs-mode processed_logprobs" in done.stdout
    other = house.call("policy", "--dry-run", POLICY_TRAIN="half")
    assert other.returncode == 2 and "POLICY_TRAIN=half: lora or full" in other.stderr


def test_the_policy_gets_adapters_that_can_be_exchanged(house: House) -> None:
    house.environment["POLICY_PORT"] = str(free_port())
    house.environment["POLICY_API_KEY"] = "secret"
    try:
        done = house.call("policy", "--", "--seed", "7")
        assert done.returncode == 0, done.stdout + done.stderr
        seen = json.loads(house.seen.read_text())
        flags = " ".join(seen["arguments"])
        assert "--enable-lora --max-lora-rank 64 --max-loras 2" in flags
        assert "--logprobs-mode processed_logprobs" in flags and flags.endswith("--seed 7")
        assert "reasoning-parser" not in flags and "secret" not in flags
        assert seen["environment"]["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
        assert seen["environment"]["CUDA_VISIBLE_DEVICES"] == "1"
        assert seen["environment"]["VLLM_API_KEY"] == "secret" and "secret" not in done.stdout
        assert house.call("policy", "--status").returncode == 0
        assert house.call("--status").returncode == 3  # the executor is another server
    finally:
        house.call("policy", "--stop")


def test_a_server_that_dies_shows_its_last_words(house: House) -> None:
    done = house.call(STANDIN="dies")
    assert done.returncode == 1
    assert "ended before it served" in done.stderr
    assert "| torch.OutOfMemoryError: CUDA out of memory" in done.stderr
    assert "EXECUTOR_MAX_MODEL_LEN" in done.stderr
    assert not (house.path / "outputs/vllm/executor.pid").exists()


def test_a_server_that_never_serves_is_ended(house: House) -> None:
    # On a busy machine a second may not be enough for its first line and its worker.
    for seconds in ("1", "4", "16", "64"):
        done = house.call(STANDIN="never", EXECUTOR_START_SECONDS=seconds)
        assert done.returncode == 1
        assert f"not serving after {seconds} s (EXECUTOR_START_SECONDS)" in done.stderr
        if house.has_worker():
            break
    assert "| loading weights" in done.stderr
    assert not is_running(house.worker())


def test_a_server_on_its_way_down_is_waited_for_and_followed(house: House) -> None:
    command = ["bash", house.path / "launch_vllm_safe.sh"]
    first = house.environment | {"STANDIN": "leaves"}
    with subprocess.Popen(command, env=first, stdout=subprocess.PIPE, text=True) as starting:
        assert starting.stdout is not None
        assert any("is starting" in line for line in starting.stdout)
        starting.kill()  # whoever called first has gone; the server has not
        with subprocess.Popen(
            command, env=house.environment, stdout=subprocess.PIPE, text=True
        ) as second:
            assert second.stdout is not None
            assert any("is starting already" in line for line in second.stdout)
            Path(f"{house.seen}.go").touch()
            said, _ = second.communicate(timeout=600)
    assert second.returncode == 0 and "has ended; starting another" in said
    assert is_running(house.pid())


@pytest.mark.parametrize("words", [[], ["--replicas", "2"]])
def test_an_interrupted_start_leaves_no_server_behind(house: House, words: list[str]) -> None:
    house.environment["EXECUTOR_PORT"] = str(free_ports(2)[0])
    with subprocess.Popen(
        ["bash", house.path / "launch_vllm_safe.sh", "executor", *words],
        env=house.environment | {"STANDIN": "never"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as waiting:
        worker = Path(f"{house.seen}.worker")
        for _ in range(1200):
            if worker.exists() and worker.read_text():
                break
            time.sleep(0.05)
        waiting.terminate()
        _, said = waiting.communicate(timeout=600)
    assert waiting.returncode == 1 and "interrupted; the end of" in said
    assert not is_running(house.worker())
    assert not list((house.path / "outputs/vllm").glob("*.pid"))


def test_a_port_that_something_else_has_is_named(house: House) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", int(house.environment["EXECUTOR_PORT"])))
        taken.listen()
        threading.Thread(target=_hang_up, args=(taken,), daemon=True).start()
        done = house.call()
        assert done.returncode == 2
        assert "taken by something that is no healthy model server" in done.stderr
        assert not house.seen.exists()
        taken.shutdown(socket.SHUT_RDWR)


def _hang_up(listening: socket.socket) -> None:
    try:
        while True:
            listening.accept()[0].close()
    except OSError:
        return


def test_a_server_that_somebody_else_started_is_used_and_never_stopped(house: House) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"data": [{"id": MODEL}]}).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as theirs:
        threading.Thread(target=theirs.serve_forever, daemon=True).start()
        port = str(theirs.server_port)
        done = house.call(EXECUTOR_PORT=port)
        assert done.returncode == 0 and "not started by this script" in done.stdout
        assert "nothing was stopped" in house.call("--stop", EXECUTOR_PORT=port).stdout
        assert house.call("--status", EXECUTOR_PORT=port).returncode == 0
        theirs.shutdown()


def test_stop_leaves_a_later_process_with_the_same_number_alone(house: House) -> None:
    house.start()
    pid_file = house.path / "outputs/vllm/executor.pid"
    recorded = pid_file.read_text().splitlines()
    house.call("--stop")
    with subprocess.Popen(["sleep", "30"], start_new_session=True) as bystander:
        try:
            pid_file.write_text("\n".join([str(bystander.pid), *recorded[1:]]) + "\n")
            assert "nothing was stopped" in house.call("--stop").stdout
            assert bystander.poll() is None
        finally:
            bystander.kill()


def test_dry_run_prints_the_command_and_starts_nothing(house: House) -> None:
    done = house.call("--dry-run", EXECUTOR_GPUS="0,1", EXECUTOR_REASONING_PARSER="")
    assert done.returncode == 0, done.stderr
    assert f"{house.path}/bin/vllm serve {MODEL} --host 127.0.0.1" in done.stdout
    assert "CUDA_VISIBLE_DEVICES=0,1" in done.stdout
    assert "--tensor-parallel-size 2" in done.stdout
    assert "--reasoning-parser" not in done.stdout
    assert not house.seen.exists() and not (house.path / "outputs").exists()


LAST_WORDS = {
    "User-specified max_model_len (8192) is greater than the derived max_model_len (2048)":
        "lower EXECUTOR_MAX_MODEL_LEN",
    "ValueError: max_num_batched_tokens (4096) is smaller than max_model_len (8192)":
        "EXECUTOR_MAX_BATCHED_TOKENS as many as EXECUTOR_MAX_MODEL_LEN",
    "(4.0 GiB KV cache is needed, which is larger than the available KV cache memory (1.0 GiB)":
        "VLLM_CPU_KVCACHE_SPACE",
    "ValueError: No available memory for the cache blocks.": "more GPUs (EXECUTOR_GPUS)",
    "OSError: [Errno 98] Address already in use": "is in use",
    "Total number of attention heads (9) must be divisible by tensor parallel size (2).":
        "EXECUTOR_TENSOR_PARALLEL to a divisor",
    "RuntimeError: operator torchvision::nms does not exist": "uninstall torchvision",
    "Transformers does not recognize this architecture": "a newer vLLM",
    "Model architectures ['NewForCausalLM'] are not supported for now.": "a newer vLLM",
    "non-default args: {'trust_remote_code': False}\nvllm: error: unrecognized arguments: -o":
        "does not know a flag",
    "Please pass the argument `trust_remote_code=True` to allow custom code": "-- --trust-remote",
    "vllm: error: unrecognized arguments: --odd": "does not know a flag",
    "RuntimeError: Failed to infer device type": "EXECUTOR_DEVICE=cpu",
}  # fmt: skip


def test_known_errors_of_a_log_come_with_advice() -> None:
    for error, advice in LAST_WORDS.items():
        assert advice in str(hint(f"INFO starting\n{error}\n", "EXECUTOR", 8002))
    assert hint("INFO starting\n", "EXECUTOR", 8002) is None


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
OWN_LENGTHS = [
    ({"max_position_embeddings": 8192}, "--max-model-len 8192"),
    ({"max_position_embeddings": 131072}, "--max-model-len 32768"),
    ({"text_config": {"max_position_embeddings": 4096}}, "--max-model-len 4096"),
    ({"max_position_embeddings": 2048, "rope_scaling": YARN}, "--max-model-len 32768"),
    ({"n_positions": 1024}, "--max-model-len 1024"),
    ({}, "--max-model-len 32768"),
]


@pytest.mark.parametrize(("config", "expected"), OWN_LENGTHS)
def test_no_more_is_asked_for_than_the_model_takes(
    house: House, config: dict[str, object], expected: str
) -> None:
    folder = make_model(house.path / "own", **config)
    done = house.call("--dry-run", EXECUTOR_MODEL=str(folder))
    assert done.returncode == 0, done.stderr
    assert f"{expected} " in done.stdout


@pytest.mark.parametrize(("asked", "shown"), [("512", "--max-model-len 512 "), ("", "serve")])
def test_a_length_that_is_given_counts_where_the_model_takes_it(
    house: House, asked: str, shown: str
) -> None:
    folder = make_model(house.path / "own", max_position_embeddings=2048)
    done = house.call("--dry-run", EXECUTOR_MODEL=str(folder), EXECUTOR_MAX_MODEL_LEN=asked)
    assert shown in done.stdout
    assert done.stdout.count("--max-model-len") == bool(asked)


def test_a_cached_model_s_own_length_counts_and_so_does_its_kind(house: House) -> None:
    folder = house.path / "hub/models--small--one/snapshots/abc"
    make_model(folder, max_position_embeddings=2048, model_type="llama")
    done = house.call("--dry-run", EXECUTOR_MODEL="small/one")
    assert "small/one takes 2048 tokens, not 32768: --max-model-len is 2048" in done.stdout
    assert "--reasoning-parser" not in done.stdout, "that is GPT-OSS's"


def test_a_vllm_for_cpus_starts_where_there_is_no_gpu(house: House) -> None:
    (house.path / "bin/nvidia-smi").unlink()
    refused = house.call()
    assert refused.returncode == 2 and "EXECUTOR_DEVICE=cpu" in refused.stderr
    folder = make_model(house.path / "own", max_position_embeddings=8192, model_type="llama")
    own = {"EXECUTOR_MODEL": str(folder), "EXECUTOR_DEVICE": "cpu", "OMP_NUM_THREADS": "2"}
    done = house.call(**own, EXECUTOR_MAX_MODEL_LEN="6000")
    assert done.returncode == 0, done.stdout + done.stderr
    seen = json.loads(house.seen.read_text())
    flags = " ".join(seen["arguments"])
    assert "--enforce-eager --no-enable-chunked-prefill" in flags
    assert "--max-model-len 6000 --max-num-batched-tokens 6000" in flags
    assert "gpu" not in flags and "tensor" not in flags
    told = {name: seen["environment"].get(name) for name in (
        "OMP_NUM_THREADS", "VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND",
        "CUDA_VISIBLE_DEVICES",
    )}  # fmt: skip
    assert list(told.values()) == ["2", "1", "nobind", None]
    usual = house.call("policy", "--dry-run", POLICY_MODEL=str(folder), POLICY_DEVICE="cpu")
    assert "--max-model-len 4096 --max-num-batched-tokens 4096" in usual.stdout
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1" in usual.stdout
    (house.path / "bin/vllm").unlink()
    none = house.call("policy", "--dry-run", POLICY_MODEL=str(folder), POLICY_DEVICE="cpu")
    assert none.returncode == 2 and "scripts/setup_real_vllm.sh" in none.stderr


def test_every_problem_is_named_at_once(house: House) -> None:
    broken = make_model(house.path / "broken", ("model-1-of-2.safetensors",))
    index = {"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}
    (broken / "model.safetensors.index.json").write_text(json.dumps(index))
    done = house.call("--dry-run", EXECUTOR_MODEL=str(broken), EXECUTOR_GPUS="0,9", FREE_MIB="900")
    assert done.returncode == 2
    assert f"serve {broken}" in done.stdout
    assert "lacks 1 of its weight files, such as model-2-of-2.safetensors" in done.stderr
    assert "900 of 81559 MiB are free, 77481 are needed" in done.stderr
    assert "GPU 9: nvidia-smi does not know it" in done.stderr


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"EXECUTOR_MODEL": "/no/such/model"}, "EXECUTOR_MODEL: no such folder: /no/such/model"),
        ({"HF_HUB_OFFLINE": "1"}, "is not in"),
        ({"VLLM_BIN": "/no/such/vllm"}, "VLLM_BIN: no such program"),
        ({"EXECUTOR_DEVICE": "tpu"}, "EXECUTOR_DEVICE=tpu: gpu or cpu"),
        ({"EXECUTOR_MAX_MODEL_LEN": "8k"}, "EXECUTOR_MAX_MODEL_LEN=8k: whole tokens"),
        (
            {"EXECUTOR_DEVICE": "cpu", "EXECUTOR_MAX_MODEL_LEN": "08"},
            "EXECUTOR_MAX_MODEL_LEN=08: whole tokens",
        ),
        ({"EXECUTOR_PORT": "eight"}, "EXECUTOR_PORT=eight: not a port number"),
    ],
)
def test_a_bad_setting_is_named(house: House, environment: dict[str, str], expected: str) -> None:
    done = house.call(**environment)
    assert done.returncode == 2 and expected in done.stderr
    assert not house.seen.exists()


def test_the_model_is_the_one_that_the_file_of_models_has_at_the_port(house: House) -> None:
    """As a guide writes it: ``model_name`` is the folder, and no variable is set."""
    port = house.environment["EXECUTOR_PORT"]
    file = house.path / "config/aflow_llm.yaml"
    file.parent.mkdir()

    def entry(name: str, model: str, at: str = f"localhost:{port}") -> str:
        return f'  "{name}": {{base_url: "http://{at}/v1", model_name: "{model}"}}\n'

    def served(**environment: str) -> str:
        done = house.call("--dry-run", **environment)
        return done.stdout.partition("vllm serve ")[2].partition(" ")[0] + done.stderr

    folder = make_model(house.path / "gpt-oss")
    own = entry("big", str(folder)) + entry("far", "a/b", f"other:{port}") + entry("x", "c/d", "[1")
    rows = {
        own: str(folder),
        own + entry("same", str(folder)): str(folder),
        entry("v", "${EXECUTOR_MODEL:-a/c}"): "a/c",
        entry("big", str(folder)) + entry("other", "a/b"): MODEL,  # which of them nobody knows
        entry("named", "served-name"): MODEL,  # neither a folder nor a hub's id
        entry("unset", "${NO_SUCH_NAME}"): MODEL,
        "  - none\n": MODEL,
    }
    for text, model in rows.items():
        file.write_text(f"models:\n{text}")
        assert served() == model, text
        assert served(EXECUTOR_MODEL="e/f") == "e/f"
    file.write_text("models:\n" + entry("big", "/path/to/gpt-oss-120b"))
    problem = "config/aflow_llm.yaml: models.big.model_name: no such folder: /path/to/gpt-oss-120b"
    assert problem in served()
    file.write_text("models: [")
    assert "config/aflow_llm.yaml:1:" in served()


def test_a_cached_model_is_found_under_its_id(house: House) -> None:
    make_model(house.path / "hub/models--openai--gpt-oss-120b/snapshots/abc")
    done = house.call("--dry-run", HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    assert "download" not in done.stdout


def test_a_missing_environment_is_made_once(house: House) -> None:
    """The Python that makes it is a stand-in: its venv holds an interpreter that only notes what
    pip is asked for, and puts the stand-in vllm in place."""
    (house.path / "bin/vllm").rename(house.path / "bin/standin-vllm")
    house.program(
        "python-standin",
        f"""#!/usr/bin/env bash
if [[ "$*" == "-m venv "* ]]; then
    mkdir -p "$3/bin"
    cp "$0" "$3/bin/python"
elif [[ "$*" == "-m pip install "* ]]; then
    echo "$*" >>{house.path}/pip.log
    cp {house.path}/bin/standin-vllm {house.path}/.venv-vllm/bin/vllm
elif [[ "$1" != -m ]]; then
    exec {sys.executable} "$@"
fi
""",
    )
    python = str(house.path / "bin/python-standin")
    planned = house.call("--dry-run", PYTHON=python)
    assert "would be made first" in planned.stdout and not (house.path / ".venv-vllm").exists()
    for _ in range(2):
        done = house.call(PYTHON=python)
        assert done.returncode == 0, done.stdout + done.stderr
        house.call("--stop")
    assert (house.path / "pip.log").read_text().count("-r requirements-vllm.txt") == 1


def test_the_script_needs_no_arguments_to_be_understood() -> None:
    done = subprocess.run(
        ["bash", ROOT / "launch_vllm_safe.sh", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"], "HOME": "/nowhere"},
    )
    for name in ("MODEL", "PORT", "GPUS", "TENSOR_PARALLEL", "GPU_MEMORY", "MAX_MODEL_LEN"):
        assert f"..._{name}" in done.stdout
    unknown = subprocess.run(
        ["bash", ROOT / "launch_vllm_safe.sh", "--halt"], capture_output=True, text=True
    )
    assert unknown.returncode == 2 and "--halt: unknown" in unknown.stderr
