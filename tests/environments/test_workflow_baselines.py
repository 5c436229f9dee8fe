"""Fixed workflows as baselines: the built-in ones, and files of a user's own."""

import asyncio
from pathlib import Path

import pytest

from flowright.app.preflight_checks import check_start
from flowright.core.errors import ConfigError, UserError
from flowright.environments.base import Environment, make_environment
from flowright.environments.registry import load_config
from flowright.environments.workflow.baselines import (
    built_in_baselines,
    check_workflow_files,
    read_workflow_files,
)
from flowright.workflows.checker import ProgramChecker
from flowright.workflows.operators import OPERATORS
from flowright.workflows.source import read_workflow

QUICKSTART = Path(__file__).parents[2] / "config/quickstart.yaml"
BRANCHING = '''

"""A docstring with a block that is not the program:

```python
async def workflow(problem):
    return "no"
```
"""


async def workflow(problem):
    result = await answer(problem)
    return result if result else await generate("Answer.", problem)
'''
CLASS = """class Workflow:
    async def __call__(self, problem):
        return await answer(problem)
"""


def files(folder: Path, **programs: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, program in programs.items():
        (folder / f"{name}.py").write_text(program)
    return folder


async def test_the_built_in_ones_run_as_they_stand_and_two_branch_by_the_problem() -> None:
    found = {baseline.name: baseline for baseline in built_in_baselines()}
    async with ProgramChecker(OPERATORS) as checker:
        for baseline in found.values():
            workflow = read_workflow(baseline.completion)
            assert not workflow.repairs and await checker.check(workflow.program) is None
    branching = {name.removeprefix("fixed: ") for name, one in found.items() if one.branches}
    assert branching == {
        *("programmer_or_answer", "write_test_revise", "write_test_rewrite"),
        *("agree_or_vote", "cheap_then_careful"),
    }


async def test_files_and_folders_are_named_by_their_stems(tmp_path: Path) -> None:
    folder = files(tmp_path / "own", careful=BRANCHING, plain=CLASS)
    one = files(tmp_path, more=CLASS) / "more.py"
    found = read_workflow_files([folder, one, folder], OPERATORS)
    assert [(b.name, b.branches, b.shown) for b in found] == [
        ("careful", True, True),
        ("plain", False, True),
        ("more", False, True),
    ]
    assert 'return "no"' in found[0].completion
    assert "generate" in read_workflow(found[0].completion).calls
    assert await check_workflow_files([folder, one], OPERATORS) == "careful, plain, more"


async def test_what_cannot_be_used_is_named_with_file_and_line(tmp_path: Path) -> None:
    folder = files(
        tmp_path / "own",
        syntax="\n\nasync def workflow(problem):\n    return (\n",
        types="\n\nasync def workflow(problem):\n    return await answer(3)\n",
        unknown="async def workflow(problem):\n    return await nothing(problem)\n",
        other="x = 1\n",
        yields="async def workflow(problem):\n    yield problem\n",
    )
    (folder / "bytes.py").write_bytes(b"\xff\xfe")
    again = files(tmp_path / "again", types=CLASS)
    empty = files(tmp_path / "empty")
    with pytest.raises(ConfigError) as caught:
        await check_workflow_files([folder, again, empty, tmp_path / "none.txt"], OPERATORS)
    lines = [line.removeprefix("evaluation.baselines: ") for line in caught.value.problems]
    starts = [
        f"{empty}: no .py file in this folder",
        f"{tmp_path / 'none.txt'}: no .py file or folder",
        f"{folder / 'bytes.py'}: not UTF-8 text",
        f"{folder / 'yields.py'}:2: ",
        f"{folder / 'other.py'}: no `class Workflow` or `async def workflow(problem)`",
        f"{folder / 'syntax.py'}:4: ",
        f"{again / 'types.py'}: {folder / 'types.py'} has the same name; rename one",
        f"{folder / 'types.py'}:4: ",
        f"{folder / 'unknown.py'}:2: ",
    ]
    assert len(lines) == len(starts)
    for start in starts:
        assert any(line.startswith(start) for line in lines), (start, lines)


def test_a_run_does_not_start_with_a_broken_file_nor_with_files_that_it_cannot_read(
    tmp_path: Path,
) -> None:
    bad = files(tmp_path, bad="async def workflow(problem):\n    return (\n") / "bad.py"
    where = f"run.output_dir={tmp_path / 'out'}"
    config = load_config(QUICKSTART, [f"evaluation.baselines=[{bad}]", where])
    with pytest.raises(UserError, match=r"evaluation.baselines: .*bad.py:2: "):
        check_start(config, False)
    typed = files(tmp_path, typed="async def workflow(problem):\n    return await answer(3)\n")
    config = load_config(QUICKSTART, [f"evaluation.baselines=[{typed / 'typed.py'}]", where])
    checks = dict(make_environment(config).checks())
    with pytest.raises(ConfigError, match=r"typed.py:2: "):
        asyncio.run(checks["baselines"]())
    with pytest.raises(ConfigError, match="reads no files; set it to true or false"):
        Environment(config).all_baselines()
    without = load_config(QUICKSTART, ["evaluation.baselines=false", where])
    assert make_environment(without).all_baselines() == []
