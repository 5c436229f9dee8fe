"""A run's metrics and texts as TensorBoard's event files. Nothing here reads them again."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FAMILIES = {"repair/": "rollout/repaired", "operators/": ""}
"""Means of what turns up: a step without any leaves the name out, and a curve would show the other
steps alone. Each with the metric that says that there was something to count; without one it is
another of the same kind."""


def _counts(name: str, metrics: Mapping[str, float]) -> bool:
    """Whether a metric of FAMILIES that a step lacks is 0 there, and not unknown."""
    witness = next(said for family, said in FAMILIES.items() if name.startswith(family))
    kind = name.rpartition("/")[0] + "/"
    return witness in metrics or any(other.startswith(kind) for other in metrics)


class Events:
    """TensorBoard's event file in the folder ``path``, written without torch so that this layer
    stays light."""

    def __init__(self, path: Path) -> None:
        # Imported here: half a second that a run without TensorBoard and every reader save.
        from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
        from tensorboard.plugins.text.metadata import create_summary_metadata
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        # Generated protobuf modules build their classes at import: no checker sees them.
        self._event: Any = getattr(event_pb2, "Event")  # noqa: B009
        self._session: Any = getattr(event_pb2, "SessionLog")  # noqa: B009
        self._summary: Any = getattr(summary_pb2, "Summary")  # noqa: B009
        self._tensor: Any = getattr(tensor_pb2, "TensorProto")  # noqa: B009
        self._string_type: int = getattr(types_pb2, "DT_STRING")  # noqa: B009
        self._text_metadata = create_summary_metadata("", "")
        self._writer = EventFileWriter(str(path))
        self._counted: dict[str, None] = {}  # names of FAMILIES so far

    def scalars(self, step: int, metrics: Mapping[str, float]) -> None:
        zeros = [name for name in self._counted if name not in metrics and _counts(name, metrics)]
        self._counted |= dict.fromkeys(name for name in metrics if name.startswith(tuple(FAMILIES)))
        shown = {**metrics, **dict.fromkeys(zeros, 0.0)}
        values = [self._summary.Value(tag=k, simple_value=v) for k, v in shown.items()]
        self._add(step, values)

    def text(self, step: int, name: str, markdown: str) -> None:
        tensor = self._tensor(dtype=self._string_type, string_val=[markdown.encode()])
        tensor.tensor_shape.dim.add(size=1)
        value = self._summary.Value(tag=name, metadata=self._text_metadata, tensor=tensor)
        self._add(step, [value])

    def forget_after(self, step: int) -> None:
        """Have readers drop what earlier files of this folder say of later steps."""
        session = self._session(status=self._session.START)
        self._write(step=step + 1, session_log=session)

    def _add(self, step: int, values: list[Any]) -> None:
        self._write(step=step, summary=self._summary(value=values))

    def _write(self, **fields: Any) -> None:
        self._writer.add_event(self._event(wall_time=time.time(), **fields))
        self._writer.flush()

    def close(self, status: str) -> None:
        self._writer.close()
