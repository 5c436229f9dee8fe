"""What a user reads of a run that failed on a Ray cluster.

Starting one is not tested here: it takes Ray, and a minute (docs/running_on_gpus.md has the
command).
"""

import pytest

from flowright.app.ray_cluster import check_head, cluster_of, in_words, shortage
from flowright.core.errors import ConfigError, PeerLost, RunError, RunPaused

GONE = PeerLost("another process of this run has gone")
RAYS = RuntimeError("Training failed due to worker errors:\n[Rank 0 Error Snippet]: ...")


def test_a_rank_that_says_what_is_wrong_is_heard_and_the_others_are_not():
    wrong = ConfigError("physical_gpus: 1 GPUs for more processes", "second line")
    found = in_words({0: GONE, 1: wrong, 2: GONE}, RAYS)
    assert found is wrong
    assert found.exit_code == 2


def test_a_pause_stays_a_pause():
    paused = RunPaused("step 3: 8 of 8 samples could not be scored")
    assert in_words({0: paused, 1: paused}, RAYS).exit_code == 3


def test_a_rank_that_was_killed_is_named_with_the_way_out():
    killed = RuntimeError("\n  A worker health check failed.\nTraceback of Ray ...")
    found = in_words({1: killed, 0: GONE}, RAYS)
    assert isinstance(found, RunError)
    assert found.problems == (
        "rank 1 of the run was lost: RuntimeError: A worker health check failed.",
        "start again with --resume: the run goes on from its last checkpoint",
    )


def test_without_any_ranks_word_it_is_rays():
    first, second = in_words({}, RAYS).problems
    assert first == "RuntimeError: Training failed due to worker errors:"
    assert "--resume" in second


def test_ray_port_is_the_heads_beside_a_dashboards_address():
    assert cluster_of(None, "http://head.example:8265", "6380") == "head.example:6380"
    assert cluster_of(None, "http://localhost:8265", "6380") == "127.0.0.1:6380"
    assert cluster_of(None, "", "6380") is None


def test_workers_that_no_cluster_can_place_are_refused_with_both_numbers():
    nodes = [{"CPU": 4.0, "GPU": 1.0}, {"CPU": 4.0}]
    assert shortage(nodes, {"CPU": 1}, 8) is None
    assert shortage(nodes, {"CPU": 4, "GPU": 0.5}, 1) is None
    assert shortage(nodes, {"CPU": 1, "GPU": 1}, 2) == (
        "--ray: 2 workers of 1 CPUs, 1 GPUs each are asked for, and 1 fit into the cluster "
        "(8 CPUs, 1 GPUs on 2 nodes); add nodes, or lower ray.workers, ray.gpus_per_worker "
        "(0: on CPUs) or ray.cpus_per_worker"
    )
    lacks = shortage(nodes, {"CPU": 5}, 1)  # on one node each
    assert lacks is not None and "0 fit" in lacks


def test_a_head_that_is_not_there_is_named_before_ray_waits_for_it():
    for cluster, why in (
        ("127.0.0.1:1", "Connection refused"),
        ("none.invalid:6379", "no such host: none.invalid"),
    ):
        with pytest.raises(ConfigError, match=f"--ray: {cluster}: .*{why}.*; start the cluster"):
            check_head(cluster)
    for cluster in (None, "auto", "local", "ray://127.0.0.1:1"):
        check_head(cluster)


@pytest.mark.parametrize(
    ("configured", "variable", "joined"),
    [
        (None, "", None),
        (None, "10.0.0.3:6379", "10.0.0.3:6379"),
        (None, "http://127.0.0.1:8265", "auto"),
        ("http://head.example/", "", "head.example:6379"),
        ("auto", "http://head.example:8265", "auto"),
    ],
)
def test_the_cluster_is_the_configuration_s_or_that_of_ray_address(
    configured: str | None, variable: str, joined: str | None
):
    assert cluster_of(configured, variable) == joined
