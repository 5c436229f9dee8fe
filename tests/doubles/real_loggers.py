"""A run with a real package of ``run.loggers``, interrupted and resumed; prints as JSON what the
package's files hold then. ``python real_loggers.py PACKAGE FOLDER``, in an environment that has it.
"""

import contextlib
import json
import os
import sqlite3
import struct
import sys
from pathlib import Path
from typing import Any

from flowright.config.run import RunSection
from flowright.environments.registry import make_config
from flowright.runs.directory import RunDirectory

Logged = dict[str, Any]


def train(package: str, folder: Path) -> None:
    section = RunSection(name="mine", project="shown", tensorboard=False, loggers=(package,))  # type: ignore
    for steps, resume in ((range(4), False), (range(3, 6), True)):
        run = RunDirectory(folder / "run", make_config(run=section, seed=7), resume)
        if resume:
            run.resume_after(steps.start - 1)
        for step in steps:
            odd = {"judge/agreement_with_gold": 1 / 3} if step % 2 else {}
            host = {"servers/judge/10.0.0.1:8000/attempts": 2.0 + step}
            run.record(step, {"reward/mean": 0.1 * step, **host, **odd})
        run.state(status="finished")
        run.close()
        if (warnings := run_warnings(folder)) is not None:
            raise SystemExit(f"the logger failed: {warnings}")


def run_warnings(folder: Path) -> Any:
    return json.loads((folder / "run/state.json").read_text()).get("warnings")


def wandb(folder: Path) -> Logged:
    """Of the offline runs' files: LevelDB's log format with a header of W&B's, protobuf records."""
    from wandb.proto import wandb_internal_pb2 as pb

    found: Logged = {"rows": [], "names": [], "ids": [], "config": {}}
    for file in sorted(folder.glob("run/wandb/offline-run-*/*.wandb"), key=os.path.getmtime):
        for data in log_records(file.read_bytes()[7:]):
            record: Any = getattr(pb, "Record").FromString(data)  # noqa: B009
            kind = record.WhichOneof("record_type")
            if kind == "run":
                found["names"].append(f"{record.run.project}/{record.run.display_name}")
                found["ids"].append(record.run.run_id)
                given = {item.key: item.value_json for item in record.run.config.update}
                found["config"] |= {key: json.loads(value) for key, value in given.items()}
            if kind == "history":
                items = {i.key or "/".join(i.nested_key): i.value_json for i in record.history.item}
                row = {key: json.loads(value) for key, value in items.items()}
                found["rows"].append({k: v for k, v in row.items() if not k.startswith("_")})
                assert row["_step"] == row["step"]
    return found


def log_records(data: bytes) -> list[bytes]:
    """Whole records of LevelDB's log format: blocks of 32 KiB, fragments with a header of 7 bytes.
    The file's own header stands in the first block."""
    records: list[bytes] = []
    part, at = b"", 0
    while at + 7 <= len(data):
        left = 32768 - (at + 7) % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        part += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last of several
            records.append(part)
            part = b""
    return records


def mlflow(folder: Path) -> Logged:
    from mlflow import MlflowClient

    client = MlflowClient()
    experiment = client.get_experiment_by_name("shown")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    rows: dict[int, Logged] = {}
    for run in runs:
        for name in run.data.metrics:
            history = client.get_metric_history(run.info.run_id, name)
            for point in sorted(history, key=lambda point: point.timestamp):
                rows.setdefault(point.step, {"step": point.step})[name] = point.value
    return {
        "rows": [rows[step] for step in sorted(rows)],
        "names": [f"shown/{run.info.run_name}" for run in runs],
        "ids": [run.data.tags["flowright.id"] for run in runs],
        "config": {"seed": int(runs[0].data.params["seed"])},
        "status": [run.info.status for run in runs],
    }


def trackio(folder: Path) -> Logged:
    (file,) = Path(os.environ["TRACKIO_DIR"]).glob("shown*.db")
    with contextlib.closing(sqlite3.connect(file)) as db:
        logged = db.execute("select run_name, step, metrics from metrics order by id").fetchall()
        ((config,),) = db.execute("select config from configs").fetchall()
    known = json.loads(config)
    names = dict.fromkeys(name for name, _, _ in logged)
    return {
        "rows": [{"step": step, **json.loads(metrics)} for _, step, metrics in logged],
        "names": [f"shown/{known['run_name']}"],
        "ids": [name.rpartition("-")[2] for name in names],
        "config": known,
    }


if __name__ == "__main__":
    package, folder = sys.argv[1], Path(sys.argv[2])
    with contextlib.redirect_stdout(sys.stderr):
        train(package, folder)
        read = {"wandb": wandb, "mlflow": mlflow, "trackio": trackio}[package](folder)
    print(json.dumps(read))
