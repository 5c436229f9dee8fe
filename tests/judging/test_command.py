"""The exam as a user holds it: the embedded judge, the files, the table, the page, the failures."""

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from command_lines import command
from exam_doubles import Comparing, Gullible, items
from rich.console import Console

from flowright.config.judge import JudgeSection
from flowright.config.llm import SimulatedSection
from flowright.config.root import JudgeServerConfig
from flowright.core.errors import DataError, UserError
from flowright.data.task import Problem, write_tasks
from flowright.judging.measuring.exam_probes import EQUAL, ExamPlan
from flowright.judging.measuring.exam_report import exam_report, read_exam
from flowright.judging.measuring.judge_exam import check_examinable, hold_exam, open_exam_judges
from flowright.judging.measuring.labelled_answers import read_labelled, write_labelled
from flowright.viewer.rendering.report import report_html, report_text

ROOT = Path(__file__).parents[2]
CONFIG = str(ROOT / "config/judge_server.yaml")
Main = Callable[[Sequence[str]], int]


@pytest.fixture(scope="module")
def main() -> Main:
    return command("judge exam")


@pytest.fixture
def labelled(tmp_path: Path) -> str:
    path = tmp_path / "labelled.jsonl"
    write_labelled(path, items(8))
    return str(path)


def test_an_exam_of_the_embedded_judge(
    main: Main, labelled: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "exam"
    options = ["--config", CONFIG, "--data", labelled, "--out", str(out), "--repeats", "2"]
    planted = "simulated.judge_biases={tone: 0.9}"
    assert main([*options, "--perturbations", "tone", planted]) == 0
    told = capsys.readouterr().out
    assert "SIMULATED" in told and "planted: tone +0.9" in told and "confident tone" in told
    record = json.loads((out / "exam.json").read_text())
    assert record["about"]["simulated"] is True and record["about"]["data"] == labelled
    # Plain twice, neutral and perturbed once; pairs of equals and of unequals.
    verdicts = [json.loads(line) for line in (out / "verdicts.jsonl").read_text().splitlines()]
    assert len(verdicts) == record["service"]["verdicts"] == 16 * 4 + 16 + 8
    assert {len(v["members"]) for v in verdicts if v["variant"] == EQUAL} == {2}
    page = (out / "exam.html").read_text()
    assert "SIMULATED" in page and "http:" not in page and "https:" not in page


async def test_what_was_planted_is_found_and_nothing_else() -> None:
    weights = {"injection": 0.5, "position": 0.5}
    config = JudgeServerConfig(
        judge=JudgeSection(model="simulated"),
        simulated=SimulatedSection(
            judge_true_positive=0.8, judge_false_positive=0.2, judge_biases=weights
        ),
    )
    plan = ExamPlan(perturbations=("tone", "formatting", "injection"), repeats=1, resamples=2000)
    async with open_exam_judges(config, pairs=True) as judges:
        assert judges.simulated
        record = await hold_exam(items(100), judges.judge, judges.pair_judge, plan)
    effects = {e["bias"]: e for e in record["effects"] if not e["label"]}
    assert effects["injection"]["found"] == record["pairs"][EQUAL]["found"] == "raises"
    assert effects["injection"]["own"]["value"] == pytest.approx(0.5, abs=0.2)
    assert record["pairs"][EQUAL]["position"]["value"] == pytest.approx(0.5, abs=0.2)
    assert [e for e in ("tone", "formatting", "neutral") if effects[e]["found"]] == []


def test_a_judge_that_is_down(
    main: Main, labelled: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = tmp_path / "models.yaml"
    models.write_text('models:\n  gone: {base_url: "http://127.0.0.1:9/v1", model_name: gone}\n')
    out = tmp_path / "exam"
    options = ["--config", CONFIG, "--data", labelled, "--out", str(out)]
    assert main([*options, "judge.model=gone", f"llm.file={models}"]) == 1
    told = capsys.readouterr()
    assert "127.0.0.1:9" in told.err and "nothing was measured" in told.err
    assert told.out == "" and not (out / "exam.json").exists()


def test_a_labelled_set_is_built_of_a_mixture(
    main: Main, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mixture, out = tmp_path / "mixed.jsonl", tmp_path / "labelled.jsonl"
    tasks = [
        Problem(f"m{n}", "math", "sums", f"What is {n} + {n}?", str(2 * n)) for n in range(3, 9)
    ]
    write_tasks(mixture, tasks)
    assert main(["--build", str(mixture), "--out", str(out), "--limit", "4"]) == 0
    assert len(read_labelled(out)) == 8
    assert "wrote 8 labelled answers" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--perturbations", "tones"], "did you mean tone"),
        (["judge.ask=pairwise"], "cannot be examined"),
        (["judge.ask=rubric"], "it needs criteria"),
        (["judge.modl=x"], "did you mean judge.model"),
    ],
)
def test_mistakes_are_told_before_anything_is_asked(
    main: Main,
    labelled: str,
    capsys: pytest.CaptureFixture[str],
    arguments: Sequence[str],
    message: str,
) -> None:
    assert main(["--config", CONFIG, "--data", labelled, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_arguments_that_do_not_go_together(main: Main, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--data", "x"], ["--build", "x"], ["--data", "x", "--build", "y"]):
        assert main(arguments) == 2
    assert main(["--data", "x", "--config", CONFIG, "--price-in", "1"]) == 2
    assert "--price-in and --price-out go together" in capsys.readouterr().err


def test_a_rubric_cannot_be_examined() -> None:
    check_examinable(JudgeSection(model="m"))
    with pytest.raises(UserError, match=r"judge\.ask: rubric"):
        check_examinable(JudgeSection(ask="rubric"))


# What is drawn of a record.

ABOUT = {
    "judge": "<b>bold</b>",
    "ask": "true_false",
    "mode": "judge",
    "gate": True,
    "simulated": False,
    "data": "labelled.jsonl",
    "started": "2025-01-02T03:04:05+00:00",
    "took_seconds": 12.0,
}


async def recorded(folder: Path, judge: Gullible) -> Path:
    pairs = Comparing(lambda query: (1.0, 0.5))
    record = await hold_exam(items(6), judge, pairs, ExamPlan(repeats=1, resamples=200))
    (folder / "exam.json").write_text(json.dumps({"about": ABOUT, **record}))
    return folder


def shown(folder: Path, width: int = 80) -> str:
    text = io.StringIO()
    report = exam_report(read_exam(folder))
    Console(width=width, file=text).print(report_text(report))
    return text.getvalue()


async def test_the_page_is_one_file_and_escapes_what_it_is_given(tmp_path: Path) -> None:
    judge = Gullible(fooled=lambda query: "**" in query.answer)
    page = report_html(exam_report(read_exam(await recorded(tmp_path, judge))))
    assert "&lt;b&gt;bold" in page and "<b>bold" not in page
    assert "Simulated" not in page and "SIMULATED" not in page
    assert page.count("<svg") == 3  # forest, confusion, latency: a yes or no has no reliability
    assert "+100.0 points" in page and "Labels and findings" in page


async def test_the_table_fits_a_terminal(tmp_path: Path) -> None:
    told = shown(await recorded(tmp_path, Gullible(fooled=lambda query: "**" in query.answer)))
    assert max(map(len, told.splitlines())) <= 80 and "…" not in told
    formatting = next(line for line in told.splitlines() if line.startswith("formatting"))
    assert "+100.0 (+61.0 to +100.0)" in formatting and "6/6" in formatting


async def test_nothing_is_shown_as_nothing(tmp_path: Path) -> None:
    silent = Gullible(silent=lambda query: True, status="parse_error")
    folder = await recorded(tmp_path, silent)
    told = shown(folder)
    assert ["agreement", "-"] in [line.split() for line in told.splitlines()]
    assert "parse_error" in told
    assert "0.0 %" not in told.split("pairs of")[0]
    page = report_html(exam_report(read_exam(folder)))
    assert (
        "<b>-</b>" in page
        and "none found" not in page
        and "nan" not in page.lower().split("</style>")[1]
    )


def test_a_folder_without_an_exam(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"exam\.json: no such file"):
        read_exam(tmp_path)
    (tmp_path / "exam.json").write_text("{}")
    with pytest.raises(DataError, match="run the exam again"):
        read_exam(tmp_path)


@pytest.mark.parametrize("way", ["exam", "build"])
def test_a_folder_that_cannot_be_written_is_noticed_before_anything_is_asked(
    main: Main, labelled: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], way: str
) -> None:
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "inside" / "out"
    data = ["--config", CONFIG, "--data", labelled] if way == "exam" else ["--build", "none.jsonl"]
    # No model of this name is served: it would be complained of as soon as it is looked for.
    assert main([*data, "--out", str(out), "judge.model=none"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    shown = out if way == "exam" else out.parent
    assert line == f"{shown}: cannot write here (Not a directory)"


def test_the_file_to_build_is_no_folder(
    main: Main, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--build", "none.jsonl", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"--out {tmp_path}: a folder; name the file to write\n"
