"""Attempts of baselines in the viewer, and the paired columns of the report and the terminal."""

from pathlib import Path

import pytest
from monitoring_run import evaluation
from rich.console import Console

from flowright.core.report import ReportTable
from flowright.runs.run_files import write_rollouts
from flowright.viewer.attempts_page import attempts_body
from flowright.viewer.before_after import evaluation_section, terminal_section
from flowright.viewer.layout import Links
from flowright.viewer.rendering.report import section_text
from flowright.viewer.run_list import RunList
from flowright.viewer.search import facet_counts
from flowright.viewer.selection import Filter
from flowright.viewer.snapshot import Snapshot


def test_baselines_are_a_part_of_the_run_and_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for number, name in ((1, "fixed: direct"), (2, "mine")):
        record = {"step": number, "group": 0, "index": 0, "reward": {"value": 1.0}}
        write_rollouts(tmp_path / "baselines", number, [{**record, "baseline": name}])
    shelf = RunList(tmp_path)
    (run,) = shelf.runs()
    _, part = shelf.parts(run)
    part.update()
    with part.found() as found:
        assert facet_counts(found)["baseline"] == {"fixed: direct": 1, "mine": 1}
        chosen = Filter.read({"baseline": "mine"})
        page = str(attempts_body(found, chosen, Links(run=part.name), 2))
    assert "2/0/0" in page and "1/0/0" not in page and "<small>mine</small>" in page


def test_the_table_has_paired_differences_and_earlier_runs_none() -> None:
    before = evaluation()
    rows = [row["name"] for row in before["rows"]]
    trained = next(name for name in rows if name.startswith("trained"))
    untrained = next(name for name in rows if name.startswith("untrained"))
    change = {"policy": trained, "against": untrained, "problems": 180, "value": 0.264}
    after = {
        **before,
        "differences": [change | {"low": 0.201, "high": 0.325, "p": 0.0005}],
        "bests": [
            {
                "name": "best of each kind",
                "choice": {"math": "fixed: a"},
                "gold": {"all": {"value": 0.8, "low": 0.7, "high": 0.9}},
                "tokens": 500.0,
            }
        ],
    }
    console = Console(width=80, record=True)
    with console.capture() as capture:
        console.print(section_text(terminal_section(after)))
    lines = capture.get().splitlines()
    assert all(len(line) <= 80 for line in lines)
    (line,) = [line for line in lines if line.startswith("untrained")]
    assert line.endswith("+26.4 20.1 to 32.5 <.001")
    (line,) = [line for line in lines if line.startswith("best of each kind")]
    assert line.split()[4:6] == ["80.0", "70-90"]
    for content, heads in ((after, {"Difference", "p"}), (before, set[str]())):
        section = evaluation_section(Snapshot(Path(), evaluation=content))
        assert section is not None
        table = section.blocks[0]
        assert isinstance(table, ReportTable)
        assert heads == {"Difference", "p"} & set(map(str, table.columns))
        assert len({len(row) for row in (table.columns, *table.rows)}) == 1


@pytest.mark.parametrize("odd", [None, 3, "x", [1, None], [{"against": {}}], {"a": 1}])
def test_odd_fields_of_a_file_change_nothing(odd: object) -> None:
    content = {**evaluation(), "differences": odd, "bests": odd, "tried": odd, "summary": odd}
    assert terminal_section(content).blocks
    assert evaluation_section(Snapshot(Path(), evaluation=content)) is not None
