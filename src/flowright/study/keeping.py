"""What a repository keeps of a study: claims, tables and plots, without its runs."""

import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from flowright.core.files import disk_errors, write_text
from flowright.study import claims
from flowright.study.analysis import Analysed
from flowright.study.drawings import Chart
from flowright.study.plots import plots_of
from flowright.viewer.rendering.charts import Panel, picture

LARGEST = 3_000_000
"""Bytes of a table that is kept."""
_TOGETHER = ("learning", "doses", "errors")  # groups whose charts have one key


def keep(seen: Analysed, out: Path, folder: Path) -> list[str]:
    """Copy ``claims.json``, ``results.parquet`` and ``curves.parquet`` of a study's folder, and
    draw its plots as SVG files that stand alone; returns what was left out, and why."""
    left_out = []
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name in (claims.FILE, "results.parquet", "curves.parquet"):
            size = (out / name).stat().st_size
            if size > LARGEST:
                left_out.append(f"{name}: {size:,} bytes, more than {LARGEST:,}")
                (folder / name).unlink(missing_ok=True)
                continue
            shutil.copyfile(out / name, folder / name)
        for name, drawn in _files(seen):
            write_text(folder / f"{name}.svg", _picture(drawn))
    return left_out


def _files(seen: Analysed) -> Iterable[tuple[str, Sequence[Chart]]]:
    for group, charts in plots_of(seen).items():
        drawn = {name: chart for name, chart in charts.items() if chart is not None}
        if group in _TOGETHER and drawn:
            yield group, [*drawn.values()]
        elif group != "learning_others":
            for name, chart in drawn.items():
                yield re.sub(r"\W+", "_", f"{group} {name}"), [chart]


def _picture(charts: Sequence[Chart]) -> str:
    key: dict[tuple[str, str], None] = {}
    for chart in charts:
        for classes, name in chart.key:
            colour, *dashed = classes.split()
            key[colour, f"{name} (dashed)" if dashed else name] = None
    panels = [Panel(chart.title, chart.drawn) for chart in charts]
    return picture(panels, [*key], min(3, len(panels)))
