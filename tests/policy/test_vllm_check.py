"""What is looked at before a run samples from servers, and what is said of them."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tiny_policy import checkpoint, tiny_policy
from vllm_double import BASE, VllmDouble, configured, error

from flowright.config.policy import LoraSection
from flowright.policy.tuning import ADAPTER_FILE, CONFIG_FILE
from flowright.policy.vllm.proof import zero_adapter
from flowright.policy.vllm.server import check_servers


async def checked(*servers: VllmDouble, model: str = BASE, **section: Any) -> list[str]:
    async with AsyncExitStack() as stack:
        started = [await stack.enter_async_context(server) for server in servers]
        return await check_servers(configured(*started, **section), model)


async def test_the_check_finds_nothing_wrong_with_a_good_server() -> None:
    server = VllmDouble()
    assert await checked(server, temperature=0.7) == []
    assert server.adapters == {}


@pytest.mark.parametrize(
    ("setup", "told"),
    [
        ({"runtime_lora": False}, "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and --enable-lora"),
        ({"logprobs_mode": "raw_logprobs"}, "--logprobs-mode processed_logprobs"),
        ({"max_model_len": 100}, "--max-model-len is 100"),
        ({"fail": lambda path, body: error(401, "no")}, "answered 401: no (check api_key"),
    ],
)
async def test_the_check_names_what_is_wrong(setup: dict[str, Any], told: str) -> None:
    (line,) = await checked(VllmDouble(**setup), temperature=0.7)
    assert told in line and line.startswith("policy.vllm: http://127.0.0.1:")


async def test_the_check_names_a_model_that_is_not_served_and_a_server_that_is_not_there() -> None:
    (line,) = await checked(VllmDouble(), model="Qwen/Qwen2.5-7B-Instruct")
    assert f"serves {BASE}, not Qwen/Qwen2.5-7B-Instruct; set policy.vllm.model_name" in line
    gone = VllmDouble()
    async with gone:
        section = configured(gone)
    (line,) = await check_servers(section, BASE)
    assert "Connection refused; start it with: bash launch_vllm_safe.sh policy" in line


# With an empty adapter


async def tried(server: VllmDouble, tmp_path: Path, lora: LoraSection | None = None) -> list[str]:
    """What the check says that loads an empty adapter, which must leave nothing behind."""
    async with server:
        section = configured(server)
        lora = lora or section.lora
        section = section.model_copy(update={"lora": lora})
        with zero_adapter(str(checkpoint()), lora, tmp_path / "a" / "b") as adapter:
            assert adapter is not None
            found = await check_servers(section, BASE, adapter)
        assert server.adapters == {} and list(tmp_path.iterdir()) == []
        return found


async def test_an_empty_adapter_is_loaded_asked_and_gone(tmp_path: Path) -> None:
    server = VllmDouble()
    assert await tried(server, tmp_path) == []
    paths = [path for path, _ in server.requests]
    assert paths[-3:] == ["load_lora_adapter", "completions", "unload_lora_adapter"]


def test_an_empty_adapter_is_described_as_the_runs_own(tmp_path: Path) -> None:
    section = LoraSection(rank=4, alpha=8, rank_stabilised=True)
    tiny_policy(lora=section).save(tmp_path / "own")
    with zero_adapter(str(checkpoint()), section, tmp_path) as folder:
        assert folder is not None
        empty, own = (
            json.loads((path / CONFIG_FILE).read_text()) for path in (folder, tmp_path / "own")
        )
        shapes = [load_file(path / ADAPTER_FILE) for path in (folder, tmp_path / "own")]
    for key in ("r", "lora_alpha", "use_rslora"):
        assert empty[key] == own[key]
    assert {*empty["target_modules"]} == {*own["target_modules"]}
    assert {n: t.shape for n, t in shapes[0].items()} == {n: t.shape for n, t in shapes[1].items()}


REFUSALS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"max_lora_rank": 16}, {"rank": 32}, "start it with --max-lora-rank 32 or above, or lower"),
    ({"adapts": frozenset({"q_proj"})}, {}, "take out of policy.lora.target_modules what"),
    ({"sees": lambda path: False}, {}, "as the first process does; set policy.vllm.adapter_dir"),
    ({"fail": lambda path, body: error(500, "LoRA is not enabled. Use --enable-lora.")
      if body.get("lora_name") else None}, {}, "takes no adapters while it runs"),
    ({"runtime_lora": False}, {}, "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"),
    ({"edit": lambda reply, body: reply["choices"][0].pop("prompt_token_ids", None)}, {},
     "it takes a vLLM of requirements-vllm.txt"),
]  # fmt: skip


@pytest.mark.parametrize(("setup", "lora", "told"), REFUSALS, ids=[told for *_, told in REFUSALS])
async def test_what_a_server_says_of_an_empty_adapter_is_named_with_the_mend(
    tmp_path: Path, setup: dict[str, Any], lora: dict[str, Any], told: str
) -> None:
    (line,) = await tried(
        VllmDouble(**setup), tmp_path, LoraSection(**{"rank": 4, "alpha": 8, **lora})
    )
    assert told in line and line.startswith("policy.vllm: http://127.0.0.1:")


async def test_a_check_that_is_interrupted_while_it_loads_leaves_no_adapter(tmp_path: Path) -> None:
    async with VllmDouble() as server:
        section = configured(server)
        loading = asyncio.Event()

        def heard(path: str, body: dict[str, Any]) -> None:
            if body.get("lora_name") and path == "load_lora_adapter":
                server.delay = 0.05  # it loads on, whoever waits
                loading.set()

        server.fail = heard
        with zero_adapter(str(checkpoint()), section.lora, tmp_path) as adapter:
            checking = asyncio.create_task(check_servers(section, BASE, adapter))
            await loading.wait()
            checking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await checking
        assert server.seen["unload_lora_adapter"] == 1 and server.adapters == {}
    assert list(tmp_path.iterdir()) == []


async def test_an_address_without_v1_is_told_with_the_one_that_serves(tmp_path: Path) -> None:
    async with VllmDouble() as server:
        section = configured(server)
        root = server.url.removesuffix("/v1")
        vllm = section.vllm.model_copy(update={"base_urls": (root,)})
        (line,) = await check_servers(section.model_copy(update={"vllm": vllm}), BASE)
    assert f"{root} answered 404 to /models, and {server.url} serves: put {server.url} into" in line
