"""Episodes of verifiers' own environments, in a Python that has it and `uv` on its path.

``python verifiers_run.py`` prints one line of JSON: the episodes of each configuration, whose
policy is a server that always writes ``y``.
"""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import verifiers.v1 as vf
from llm_standin import StandIn, delta, stream

from flowright_env import load_environment

HEAD = {"id": "x", "object": "chat.completion.chunk", "created": 0}
CHUNKS = (delta("y", role="assistant"), delta(finish="stop"))
RUNS = {
    "words": ("Words", [], 2),
    "lost": ("Words", ["judge.model=lost"], 2),
    "turns": ("Twice", [], 1),
}


async def played(name: str, overrides: list[str], count: int) -> list[dict[str, Any]]:
    async with StandIn(rest=stream(*(chunk | HEAD for chunk in CHUNKS))) as server:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "run.yaml"
            file.write_text(f"environment: words_environment:{name}\n")
            environment = load_environment(str(file), overrides)
        client = vf.EvalClientConfig(base_url=server.url, api_key_var="NO_KEY")
        context = vf.ModelContext(model="standin-7b", client=client)
        tasks = list(environment.taskset.take(count))
        async with environment.serving():
            episodes = [await environment.run_episode(task, context) for task in tasks]
    return [summary(episode) for episode in episodes]


def summary(episode: vf.Episode) -> dict[str, Any]:
    (trace,) = episode.traces
    return {
        "ok": episode.ok,
        "rewards": [reward.value for reward in trace.rewards.values()],
        "gold": trace.metrics.get("gold"),
        "turns": trace.num_turns,
        "messages": [str(message.content) for message in trace.messages],
        "error": " ".join(error.message for error in [*episode.errors, *trace.errors]),
    }


async def main() -> None:
    print(json.dumps({name: await played(*run) for name, run in RUNS.items()}))


if __name__ == "__main__":
    asyncio.run(main())
