"""The public face: what a script may import, that it costs nothing until it is used, its page."""

import ast
import re
import runpy
import subprocess
import sys
from pathlib import Path

import flowright

ROOT = Path(__file__).parents[1]
NAMES = {
    *("train", "evaluate", "dry_run", "Config", "load_config"),
    *("EnvironmentSection", "make_config"),
    *("Task", "Problem", "read_tasks"),
    *("Environment", "TaskSets", "Baseline", "Demonstration", "Display"),
    *("Episode", "Observation", "Turn", "Rollout", "Reward", "UNSCORED"),
    *("Failure", "Reason", "boundary", "Gold"),
    *("Judge", "JudgeQuery", "Verdict", "JudgeRewardSystem", "create_judge_reward"),
    *("BaseJudgeReward", "RewardResult", "serve_judge_model"),
    *("trl_reward", "EnvironmentReward", "VerlReward"),
    *("Sandbox", "Limits", "operator"),
    *("Policy", "load_policy", "chunks", "Group", "Trained", "Learner"),
}


def test_the_public_names_are_these_and_all_are_there():
    assert set(dir(flowright)) == NAMES | {"__version__"}
    for name in NAMES:
        assert getattr(flowright, name) is not None


def test_checkers_and_the_running_package_see_the_same_names():
    tree = ast.parse((ROOT / "src/flowright/__init__.py").read_text(encoding="utf-8"))
    (block,) = (n for n in tree.body if isinstance(n, ast.If) and isinstance(n.test, ast.Name))
    imported = {
        (node.module, alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == {(m, name) for m, names in flowright.PUBLIC.items() for name in names}


def test_importing_the_package_loads_nothing_else():
    """Under 0.2 s: by the processor's clock, as a busy machine is slow, not wrong."""
    code = (
        "import sys, time; before = set(sys.modules); began = time.process_time()\n"
        "import flowright\n"
        "took = time.process_time() - began\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(took); print(*sorted(new - set(sys.stdlib_module_names)))"
    )
    told = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(3)
    ]
    assert {run.stdout.split("\n")[1] for run in told} == {"flowright"}
    assert min(float(run.stdout.split("\n")[0]) for run in told) < 0.2


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(flowright, "trainer")


def test_the_way_to_the_loss_is_six_files_and_their_functions():
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    told = page.partition("## From train.py to the loss")[2].partition("Aside")[0]
    steps = re.findall(r"^\d\. `([\w./]+\.py)`: (.*?)(?=^\d\. |\Z)", told, re.MULTILINE | re.DOTALL)
    assert 0 < len(steps) <= 6 and len({path for path, _ in steps}) == len(steps)
    assert (steps[0][0], steps[-1][0]) == (
        "src/flowright/cli/runs.py",
        "src/flowright/grpo/objectives.py",
    )
    for path, text in steps:
        source = (ROOT / path).read_text(encoding="utf-8")
        named = re.findall(r"`(\w+)`", text)
        assert named and all(f"def {name}(" in source for name in named), path


def test_the_page_is_the_docstrings():
    script = runpy.run_path(str(ROOT / "scripts/write_api_docs.py"))
    written = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    assert script["api"]() == written, "run: python scripts/write_api_docs.py"
