"""A server on a real socket that speaks what the sampler asks of vLLM, and misbehaves on order.

Its log-probabilities are real: it has the base model of a tiny policy, reads adapters from their
folders into it, or all weights into its place, and draws token by token. What it answers, word for
word, was read in vLLM's source (entrypoints/openai/completion and models, serve/dev, rl/online); no
vLLM runs here.
"""

import asyncio
import copy
import json
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache, cached_property
from inspect import signature
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from aiohttp import web
from safetensors.torch import load_file
from tiny_policy import tiny_policy, weights, whole_logits
from torch import Tensor
from transformers import DynamicCache

from flowright.config.policy import LoraSection, PolicySection, VllmSection
from flowright.policy.local import _nucleus
from flowright.policy.model import Policy

BASE, OWN = "tiny-base", "/models/tiny"


@dataclass
class Adapter:
    """What was loaded under a name; ``state`` None is the base model."""

    path: str
    state: dict[str, Tensor] | None


@dataclass
class Model:
    """The base model, and whose adapter is in it now. Answers are kept: they are functions of the
    adapter and the request."""

    policy: Policy
    applied: dict[str, Tensor] | None = None
    kept: dict[tuple[int, str], Any] = field(default_factory=dict)
    held: list[Any] = field(default_factory=list)  # so that no id is used twice

    @cached_property
    def own(self) -> dict[str, Tensor]:
        """Of a model whose weights are all exchanged: those that it was started with."""
        return weights(self.policy)

    def logits(self, state: dict[str, Tensor] | None, ids: list[int]) -> Tensor:
        with self._with(state):
            return whole_logits(self.policy, ids).float()

    def behind(
        self, cached: dict[str, Tensor] | None, state: dict[str, Tensor] | None, ids: list[int]
    ) -> Callable[[list[int]], Tensor]:
        """The last logits of ids that begin with these, whose keys and values are of a state that
        was there before."""
        forward = self.policy.causal_lm
        name = "cache" if "cache" in signature(forward.forward).parameters else "past_key_values"
        kept = DynamicCache(config=forward.config)
        with self._with(cached), torch.no_grad():
            forward(input_ids=torch.tensor([ids[:-1]]), **{name: kept})

        def last(longer: list[int]) -> Tensor:
            new = torch.tensor([longer[len(ids) - 1 :]])
            with self._with(state), torch.no_grad():
                return forward(input_ids=new, **{name: copy.deepcopy(kept)}).logits[0, -1:]

        return last

    def _with(self, state: dict[str, Tensor] | None) -> AbstractContextManager[None]:
        if state is None:
            return self.policy.reference()
        if self.applied is not state:
            self.policy.load(state)
            self.applied = state
        return nullcontext()

    def once(
        self, state: dict[str, Tensor] | None, request: object, compute: Callable[[], Any]
    ) -> Any:
        key = (id(state), json.dumps(request))
        if key not in self.kept:
            self.held.append(state)
            self.kept[key] = compute()
        return copy.deepcopy(self.kept[key])


@cache
def model(architecture: str = "qwen2", train: str = "lora") -> Model:
    """One for all servers of a process: loading is what costs."""
    section = {} if train == "lora" else {"train": train}
    return Model(tiny_policy(architecture, trained=False, **section))


@dataclass
class VllmDouble:
    """One server. Faults are fields, to be set before or while it runs; ``fail`` sees every
    request (path and body) first and may give a response in the real one's place."""

    model: Model = field(default_factory=model)
    port: int = 0
    logprobs_mode: str = "processed_logprobs"
    max_lora_rank: int = 64
    adapts: frozenset[str] = frozenset(LoraSection().target_modules)
    capacity: int = 4  # adapters in memory; the least recently used goes first
    max_model_len: int | None = 4096
    runtime_lora: bool = True
    dev_mode: bool = False
    keeps_cache: bool = False  # over an exchange of weights, and reports that it does not
    takes: Callable[[str, str], bool] = lambda path, weight: True  # of all weights; reports 200
    label: str = "default"
    loaded: dict[str, Tensor] | None = None  # in the base model's place
    paused: bool = False
    cached: dict[tuple[int, ...], dict[str, Tensor] | None] = field(default_factory=dict)
    ignores: Callable[[str], bool] = lambda name: False  # the base serves under such a name
    scales: float = 1.0  # of adapters: as where lora_alpha is not read
    serves_first: bool = False  # caches the first adapter for good
    decodes_with_base: bool = False
    sees: Callable[[str], bool] = lambda path: True
    fail: Callable[[str, dict[str, Any]], web.StreamResponse | None] = lambda path, body: None
    edit: Callable[[dict[str, Any], dict[str, Any]], None] = lambda reply, body: None
    adapters: dict[str, Adapter] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)  # of loads
    delay: float = 0.0
    gate: asyncio.Event | None = None  # that a request waits for
    held: Callable[[str, dict[str, Any]], bool] = lambda path, body: False  # a request, while true
    in_flight: int = 0
    most_at_once: int = 0

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/v1/{path:.*}", self._answer)
        app.router.add_route("*", "/{path:.*}", self._command)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def seen(self) -> Counter[str]:
        """Requests by path."""
        return Counter(path for path, _ in self.requests)

    @property
    def draws(self) -> list[dict[str, Any]]:
        """The requests for samples, without those of proofs."""
        bodies = [body for path, body in self.requests if path == "completions"]
        return [b for b in bodies if "logprobs" in b and b["seed"] != 0]

    def restart(self) -> None:
        """Forget all weights but its own, as a server that was started anew."""
        self.adapters.clear()
        self.cached.clear()
        self.label, self.loaded, self.paused = "default", None, False

    async def _command(self, request: web.Request) -> web.StreamResponse:
        """What only a server in development mode does, which knows no key."""
        path, body = request.match_info["path"], json.loads(await request.read() or b"{}")
        self.requests.append((path, body))
        failed = self.fail(path, body)
        if failed is not None:
            return failed
        if not self.dev_mode:
            return await _unknown(request)
        if path == "weight_info":
            return web.json_response({"weight_version": self.label})
        if path == "update_weight_version":
            self.label = body["new_version"]
            return web.json_response({"success": True, "new_version": self.label})
        if path == "pause":
            assert request.query["mode"] == "wait"
            self.paused = True
            while self.in_flight:
                await asyncio.sleep(0.001)
            self._clear()
            return web.json_response({"status": "paused"})
        if path == "resume":
            self.paused = False
            return web.json_response({"status": "resumed"})
        if path == "reset_prefix_cache":
            self._clear()
            return web.json_response({"success": not self.in_flight})
        if path == "collective_rpc":
            return self._reload(body)
        return await _unknown(request)

    def _clear(self) -> None:
        if not self.keeps_cache:
            self.cached.clear()

    def _reload(self, body: dict[str, Any]) -> web.Response:
        if "method" not in body:
            return error(400, "Missing 'method' in request body")
        assert self.paused and not self.in_flight and body["method"] == "reload_weights"
        path, policy = body["kwargs"]["weights_path"], self.model.policy
        if path != OWN and not (self.sees(path) and Path(path).is_dir()):
            return error(400, f"Repo id must be in the form 'repo_name': '{path}'.")
        own = self.model.own
        found = own if path == OWN else policy.tuning.read(Path(path), "the double")
        before = self.loaded or own
        self.loaded = {n: found[n] if self.takes(path, n) else before[n] for n in own}
        return web.json_response({"results": [None]})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info["path"]
        body = json.loads(await request.read() or b"{}")
        self.requests.append((path, body))
        failed = self.fail(path, body)
        if failed is not None:
            return failed
        while self.paused and path == "completions":
            await asyncio.sleep(0.001)
        self.in_flight += 1
        self.most_at_once = max(self.most_at_once, self.in_flight)
        try:
            await asyncio.sleep(self.delay)
            if self.gate is not None:
                await self.gate.wait()
            while self.held(path, body):
                await asyncio.sleep(0.002)
            route = self._routes().get(path)
            if route is None:
                return await _unknown(request)
            return route(body)
        finally:
            self.in_flight -= 1

    def _routes(self) -> dict[str, Callable[[dict[str, Any]], web.Response]]:
        routes = {"models": self._models, "completions": self._completions}
        if self.runtime_lora:
            routes |= {"load_lora_adapter": self._load, "unload_lora_adapter": self._unload}
        return routes

    def _models(self, body: dict[str, Any]) -> web.Response:
        base = {"id": BASE, "root": OWN, "parent": None}
        rows: list[dict[str, Any]] = [base | {"max_model_len": self.max_model_len}]
        rows += [{"id": n, "root": a.path, "parent": BASE} for n, a in self.adapters.items()]
        return web.json_response({"object": "list", "data": rows})

    def _load(self, body: dict[str, Any]) -> web.Response:
        name, path = body["lora_name"], body["lora_path"]
        if not name or not path:
            return error(400, "Both 'lora_name' and 'lora_path' must be provided.")
        if name in self.adapters:  # vLLM loads one after the other, by name
            self.refusals.append(f"The lora adapter '{name}' has already been loaded.")
            return error(400, self.refusals[-1])
        folder = Path(path)
        if not self.sees(path) or not folder.is_dir():
            told = f"Loading lora {name} failed: No adapter found for {path}"
            return error(404, told, "NotFoundError")
        rank = json.loads((folder / "adapter_config.json").read_text())["r"]
        if rank > self.max_lora_rank:
            limit = f"max_lora_rank {self.max_lora_rank}"
            return error(500, f"LoRA rank {rank} is greater than {limit}.", "InternalServerError")
        found = json.loads((folder / "adapter_config.json").read_text())["target_modules"]
        if other := sorted(set(found) - self.adapts):
            return error(
                500,
                f"While loading {path}, expected target modules in {self.adapts} but received "
                f"{other}. Please verify that the loaded LoRA module is correct",
                "InternalServerError",
            )
        state = load_file(folder / "adapter_model.safetensors")
        if self.serves_first and self.adapters:
            first = next(iter(self.adapters.values())).state
            state = first if first is not None else state
        if self.scales != 1:
            state = {n: t * self.scales if ".lora_B." in n else t for n, t in state.items()}
        self.adapters[name] = Adapter(path, None if self.ignores(name) else state)
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    def _unload(self, body: dict[str, Any]) -> web.Response:
        if body["lora_name"] not in self.adapters:
            return error(404, f"The lora adapter '{body['lora_name']}' cannot be found.")
        names = list(self.adapters)
        if names.index(body["lora_name"]) < len(names) - self.capacity:  # pushed out before
            return error(500, f"Failed to remove lora adapter '{body['lora_name']}'")
        del self.adapters[body["lora_name"]]
        return web.Response(text="Success")

    def _completions(self, body: dict[str, Any]) -> web.Response:
        name = body["model"]
        if name != BASE and name not in self.adapters:
            return error(404, f"The model `{name}` does not exist.")
        state = self.adapters[name].state if name != BASE else self.loaded
        if isinstance(body["prompt"], str):
            encode = self.model.policy.tokenizer.encode
            body = body | {"prompt": encode(body["prompt"], add_special_tokens=False)}
        asked = {key: value for key, value in body.items() if key != "model"}
        asked |= {"mode": self.logprobs_mode, "base": self.decodes_with_base}
        if name == BASE:
            asked["cached"] = id(self.cached.get(tuple(body["prompt"]), state))
        drawn, logprobs, top, reason = self.model.once(
            state, asked, lambda: self._draw(state, body)
        )
        choice: dict[str, Any] = {
            "index": 0,
            "text": "(not read)",
            "finish_reason": reason,
            "stop_reason": None,
        }
        if body.get("return_token_ids"):
            choice |= {"token_ids": drawn, "prompt_token_ids": body["prompt"]}
        if "logprobs" in body:
            choice["logprobs"] = {"token_logprobs": logprobs, "top_logprobs": top}
        if "prompt_logprobs" in body:
            prompt = body["prompt"]
            choice["prompt_logprobs"] = self.model.once(
                state, prompt, lambda: self._scored(state, prompt)
            )
        reply = {"model": name, "choices": [choice]}
        self.edit(reply, body)
        return web.json_response(reply)

    def _scored(self, state: dict[str, Tensor] | None, ids: list[int]) -> list[Any]:
        rows = self.model.logits(state, ids).log_softmax(-1)
        entries = [{str(t): {"logprob": float(rows[i, t])}} for i, t in enumerate(ids[1:])]
        return [None, *entries]

    def _draw(
        self, state: dict[str, Tensor] | None, body: dict[str, Any]
    ) -> tuple[list[int], list[float], list[dict[str, float]], str]:
        generator = torch.Generator().manual_seed(body.get("seed", 0))
        state = None if self.decodes_with_base else state
        ids, drawn, logprobs, top = list(body["prompt"]), [], [], []
        ends = body.get("stop_token_ids", [])
        cached = self.cached.setdefault(tuple(ids), state) if body["model"] == BASE else state
        stale = self.model.behind(cached, state, ids) if cached is not state else None
        while len(drawn) < body["max_tokens"]:
            logits = stale(ids) if stale else self.model.logits(state, ids)[-1:]
            raw = logits.log_softmax(-1)
            heat = body["temperature"] or 1.0
            rows = (logits / heat).log_softmax(-1)
            if body["top_p"] < 1:
                rows = _nucleus(rows, body["top_p"])
            if body["temperature"]:
                token = int(torch.multinomial(rows.exp()[0], 1, generator=generator))
            else:
                token = int(rows.argmax())
            shown = rows if self.logprobs_mode == "processed_logprobs" else raw
            drawn.append(token)
            ids.append(token)
            logprobs.append(float(shown[0, token]))
            best = shown[0].topk(max(1, body.get("logprobs", 0)))
            pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            top.append({f"token_id:{i}": value for i, value in pairs})
            if token in ends:
                return drawn, logprobs, top, "stop"
        return drawn, logprobs, top, "length"


def exchanging(**faults: Any) -> VllmDouble:
    """A server that takes all weights."""
    return VllmDouble(model(train="full"), dev_mode=True, runtime_lora=False, **faults)


def configured(
    *servers: VllmDouble, temperature: float = 1.0, top_p: float = 1.0, **vllm: Any
) -> PolicySection:
    """To sample from these, with little patience."""
    given = {"tolerance": 1e-3, "wait_seconds": 0.3, "backoff_seconds": 0.01, "attempts": 3}
    return PolicySection(
        train="full" if servers[0].dev_mode else "lora",
        sampler="vllm",
        temperature=temperature,
        top_p=top_p,
        max_prompt_tokens=100,
        max_new_tokens=12,
        lora=LoraSection(rank=4, alpha=8),
        vllm=VllmSection(base_urls=tuple(s.url for s in servers), **given | vllm),
    )


def error(status: int, message: str, kind: str = "BadRequestError") -> web.Response:
    """An error as vLLM words it."""
    told = {"message": message, "type": kind, "param": None, "code": status}
    return web.json_response({"error": told}, status=status)


async def _unknown(request: web.Request) -> web.StreamResponse:
    """What FastAPI says of a path that it does not have."""
    return web.json_response({"detail": "Not Found"}, status=404)
