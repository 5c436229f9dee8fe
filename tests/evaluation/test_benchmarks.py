"""scripts/evaluate_instructions.py --model: a model's answers to the prompts of IFEval, scored."""

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from command_lines import command
from tiny_policy import checkpoint

from flowright.criteria.constraints.language import missing

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts/instructions"
NEEDED = pytest.mark.skipif(bool(missing()), reason="needs requirements-constraints.txt")
Main = Callable[[Sequence[str]], int]


@pytest.fixture(scope="module")
def main() -> Main:
    return command("instructions evaluate")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    ids = ["punctuation:no_comma", "startend:quotation"]
    rows = [
        {"key": n, "prompt": f"p{n}", "instruction_id_list": ids, "kwargs": [{}, {}]}
        for n in range(4)
    ]
    rows[3]["prompt"] = "too long " * 40
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@NEEDED
def test_a_models_answers_are_saved_scored_and_not_asked_for_twice(
    main: Main, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, out = tmp_path / "to" / "saved.jsonl", tmp_path / "scores.json"
    asked = ["--benchmark", "ifeval", "--data", str(data), "--model", str(checkpoint())]
    asked += ["--max-tokens", "8", "--save-responses", str(saved), "--json", str(out)]
    assert main([*asked, "--limit", "2"]) == 0
    assert len(saved.read_text().splitlines()) == 2
    capsys.readouterr()
    assert main(asked) == 0
    told = capsys.readouterr().out
    assert "1 are new" in told
    assert "3 of 4 prompts answered; 1 missing" in told
    record = json.loads(out.read_text())
    assert record["benchmarks"]["ifeval"]["missing"] == ["3"], "no answer is no wrong answer"
    assert record["generation"]["ifeval"]["drawing"]["temperature"] == 0.0
    given = tmp_path / "given.json"
    scored = ["--benchmark", "ifeval", "--data", str(data), "--responses", str(saved)]
    assert main([*scored, "--json", str(given)]) == 0
    assert json.loads(given.read_text())["rows"] == record["rows"]


@NEEDED
def test_responses_to_a_benchmarks_file_can_be_scored(tmp_path: Path) -> None:
    """Parquet gives every object the names of all."""
    ids = [["punctuation:no_comma"], ["keywords:existence", "length_constraints:number_words"]]
    arguments = [[{}], [{"keywords": ["a"]}, {"num_words": 3, "relation": "at least"}]]
    rows = [
        {"key": n, "prompt": f"p{n}", "instruction_id_list": ids[n], "kwargs": arguments[n]}
        for n in range(2)
    ]
    data, out = tmp_path / "data.jsonl", tmp_path / "out.parquet"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    generate = command("instructions generate")
    asked = ["--data-path", str(data), "--output-path", str(out), "--model", str(checkpoint())]
    assert generate([*asked, "--max-tokens", "8", "--n-samples", "2"]) == 0
    score = command("instructions score")
    assert score([f"data.path={out}", "--reward", "constraints"]) == 0
    record = json.loads((tmp_path / "out.scores.json").read_text())
    assert [len(row["values"]) for row in record["rows"]] == [2, 2]
    assert record["sources"]["out"]["ungraded"] == 0


def test_healthbench_wants_answers_and_a_judge(
    main: Main, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--benchmark", "healthbench"]) == 2
    assert "generate_responses.py" in capsys.readouterr().err
    prompt = [{"role": "user", "content": "q"}]
    rows = [{"prompt": prompt, "rubrics": [{"criterion": "Says so.", "points": 2, "tags": []}]}] * 1
    for name, row in {"d": rows[0], "a": {"prompt": prompt, "response": "so"}}.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    asked = ["--benchmark", "healthbench", "--data", str(tmp_path / "d.jsonl")]
    asked += ["--responses", str(tmp_path / "a.jsonl"), "--json", str(tmp_path / "o.json")]
    assert main(asked) == 2
    assert "--judge NAME is required" in capsys.readouterr().err
    assert main([*asked, "--judge", "simulated"]) == 0
    told = capsys.readouterr().out
    assert "SIMULATED" in told
    assert "1 samples, 0 unscored" in told


@pytest.mark.parametrize("name", ["ifeval_eval_vllm.sh", "verinstruct_eval_ckpt.sh"])
def test_the_scripts_say_what_they_take(name: str) -> None:
    told = subprocess.run(["bash", SCRIPTS / name, "--help"], capture_output=True, text=True)
    assert told.returncode == 0
    assert name.split("_")[0] in told.stdout.lower()


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("ifeval_eval_vllm.sh", ["--modle", "x"], "--modle: no such option"),
        ("ifeval_eval_vllm.sh", ["--ckpt-dir", "x"], "--merge-target DIR"),
        ("verinstruct_eval_ckpt.sh", [], "CKPT [OUT]"),
        ("verinstruct_eval_ckpt.sh", ["nowhere"], "nowhere: no such folder"),
        ("../ifeval_eval_vllm.sh", ["--modle", "x"], "--modle: no such option"),
        (
            "../../RuscaRL_example/Qwen2.5-7B-Instruct/verinstruct_eval_ckpt.sh",
            ["nowhere"],
            "nowhere: no such folder",
        ),
        ("verinstruct_eval_ckpt.sh", ["nowhere", "out"], "nowhere: no such folder"),
    ],
)
def test_the_scripts_refuse_by_name(name: str, given: list[str], said: str, tmp_path: Path) -> None:
    command = ["bash", SCRIPTS / name, *given]
    told = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert told.returncode == 2
    assert said in told.stderr
    assert not any(tmp_path.iterdir())


def test_a_checkpoint_gets_its_responses_in_process(tmp_path: Path) -> None:
    from pyarrow import parquet

    data = tmp_path / "val.jsonl"
    data.write_text(json.dumps({"prompt": "q"}) + "\n")
    told = subprocess.run(
        ["bash", SCRIPTS / "verinstruct_eval_ckpt.sh", checkpoint(), tmp_path / "out"],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "DATA_PATH": str(data), "N_SAMPLES": "3", "RESP_LEN": "8",
             "PROMPT_LEN": "200", "GPU_MEM_UTIL": "0.9"},
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    assert "note: GPU_MEM_UTIL" in told.stderr
    (file,) = (tmp_path / "out").glob("*_verinstruct_val_gen_ns3.parquet")
    (row,) = parquet.read_table(file).to_pylist()
    assert len(row["responses"]) == 3
