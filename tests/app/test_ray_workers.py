"""Rollout workers on a Ray cluster of two nodes, one of which is lost; takes Ray, and a minute."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from worker_environment import TASKS, fated, groups_of, seen

from flowright.app.ray_cluster import starter_on_ray
from flowright.config.grpo import RolloutSection
from flowright.core.checkout import child_environment
from flowright.environments.remote import with_workers

ray = pytest.importorskip("ray", reason="needs requirements-ray.txt")
DOUBLES = Path(__file__).parents[1] / "doubles"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
async def test_a_node_is_lost_and_no_number_changes(tmp_path: Path):
    from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]

    small: dict[str, Any] = {"object_store_memory": 100 << 20}
    head = {"num_cpus": 0, "include_dashboard": False, **small}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    first, _ = [cluster.add_node(num_cpus=2, **small) for _ in range(2)]
    path = os.pathsep.join([str(DOUBLES), child_environment()["PYTHONPATH"]])
    try:
        ray.init(
            address=cluster.address,
            log_to_driver=False,
            runtime_env={"env_vars": {"PYTHONPATH": path}},
        )
        alone, said = fated(tmp_path), list[str]()
        section = RolloutSection(workers=2)
        config = alone.config.model_copy(update={"rollout": section})
        environment = with_workers(fated(tmp_path), section, said.append, starter_on_ray(config))
        async with alone.open(TASKS), environment.open(TASKS):
            for step in range(1, 4):
                rolling = asyncio.create_task(environment.rollout(groups_of(step)))
                if step == 2:
                    await asyncio.to_thread(cluster.remove_node, first, False)
                assert seen(await rolling) == seen(await alone.rollout(groups_of(step)))
        (line,) = said
        assert "was lost" in line
    finally:
        ray.shutdown()
        cluster.shutdown()
