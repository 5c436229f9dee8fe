"""Fetching the upstream files: the Hugging Face hub first, then the official address, then a folder
of files that were brought otherwise. Nothing is converted to tasks here.

Where the hub has the rows as parquet only, it is used if ``pyarrow`` is installed; the rows are
then written as JSON Lines (``<file>.hub.jsonl``), which the converters read as well. A wrong hash
is reported with both values and the file stays: upstream may have published another version.
"""

import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Literal

from flowright.data.sources import Dataset, File
from flowright.data.sources.dataset import hub_rows, sha256_of
from flowright.data.transfer import FetchError, Progress, Web

HUB = "https://huggingface.co"
Origin = Literal["present", "hub", "hub rows", "official", "folder"]


@dataclass(slots=True)
class Outcome:
    """What became of one file. ``origin`` is None if it is missing, ``differs`` says that its
    SHA-256 is not the known one; ``notes`` say what failed or looks wrong, a line each."""

    dataset: str
    path: str
    required: bool
    origin: Origin | None = None
    size: int = 0
    differs: bool = False
    notes: list[str] = field(default_factory=list)


class Downloader:
    """Brings files to ``folder``. ``web`` None leaves the network alone; ``from_folder`` has the
    same layout as ``folder``. ``progress`` gives, for the name of a file, the display of its
    transfer. HF_ENDPOINT names another hub, as everywhere; proxies are those of the environment."""

    def __init__(
        self,
        folder: Path,
        *,
        web: Web | None,
        from_folder: Path | None = None,
        progress: Callable[[str], Progress],
        hub: str | None = None,
    ) -> None:
        self._folder = folder
        self._web = web
        self._from = from_folder
        self._progress = progress
        self._hub = (hub or os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")

    def run(self, datasets: Iterable[Dataset]) -> Iterator[Outcome]:
        """Fetch all files of the datasets, one after another, and say what became of each. A file
        that fails never stops the others."""
        for dataset in datasets:
            absent = [f for f in dataset.files if not (self._folder / f.path).is_file()]
            if dataset.archive is not None and any(file.required for file in absent):
                yield self._unpack(dataset.name, dataset.archive, absent)
            for file in dataset.files:
                yield self._bring(dataset.name, file)

    def _bring(self, dataset: str, file: File) -> Outcome:
        outcome = Outcome(dataset, file.path, file.required)
        ways: tuple[tuple[Origin, Callable[[File, Outcome], bool]], ...] = (
            ("present", self._is_there),
            ("hub", self._from_hub),
            ("hub rows", self._rows_from_hub),
            ("official", self._from_official),
            ("folder", self._from_folder),
        )
        for origin, bring in ways:
            try:
                if bring(file, outcome):
                    self._check(file, outcome)
                    outcome.origin = origin
                    break
            except FetchError as error:
                outcome.notes += error.problems
            except OSError as error:
                outcome.notes.append(f"{error.filename or file.path}: {error.strerror or error}")
        return outcome

    def _is_there(self, file: File, outcome: Outcome) -> bool:
        if (self._folder / file.path).is_file():
            return True
        if file.parquet and (self._folder / hub_rows(file.path)).is_file():
            outcome.path = hub_rows(file.path)
            return True
        return False

    def _from_hub(self, file: File, outcome: Outcome) -> bool:
        return file.hub is not None and self._fetch(self._hub_url(file.hub), file)

    def _from_official(self, file: File, outcome: Outcome) -> bool:
        return file.url is not None and self._fetch(file.url, file)

    def _rows_from_hub(self, file: File, outcome: Outcome) -> bool:
        if not file.parquet or self._web is None:
            return False
        if find_spec("pyarrow") is None:
            outcome.notes.append(
                f"{file.path}: the hub has it as parquet only: pip install pyarrow to use that"
            )
            return False
        target = self._folder / hub_rows(file.path)
        parts = [target.with_name(f"{target.name}.{i}.parquet") for i in range(len(file.parquet))]
        for address, part in zip(file.parquet, parts, strict=True):
            if not part.is_file():
                self._web.fetch(self._hub_url(address), part, self._progress(part.name))
        try:
            write_parquet_rows(parts, target)
        except ValueError as error:  # of which pyarrow's errors are
            raise FetchError(f"{target}: the hub's parquet can't be read: {error}") from None
        finally:
            for part in parts:
                part.unlink()
        outcome.path = hub_rows(file.path)
        return True

    def _from_folder(self, file: File, outcome: Outcome) -> bool:
        if self._from is None:
            return False
        source = self._from / file.path
        if not source.is_file():
            outcome.notes.append(f"{source}: no such file")
            return False
        target = self._folder / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(target.name + ".part")
        shutil.copyfile(source, part)
        part.replace(target)
        return True

    def _fetch(self, url: str, file: File) -> bool:
        if self._web is None:
            return False
        target = self._folder / file.path
        resumed = self._web.fetch(url, target, self._progress(file.path))
        if resumed and file.sha256 and sha256_of(target) != file.sha256:
            # The two halves may be of different versions, whatever the server said.
            target.unlink()
            self._web.fetch(url, target, self._progress(file.path))
        return True

    def _check(self, file: File, outcome: Outcome) -> None:
        path = self._folder / outcome.path
        outcome.size = path.stat().st_size
        if outcome.path == file.path and file.sha256:
            found = sha256_of(path)
            outcome.differs = found != file.sha256
            if outcome.differs:
                outcome.notes.append(f"{path}: SHA-256 is {found}, known is {file.sha256}")

    def _unpack(self, dataset: str, archive: File, absent: Sequence[File]) -> Outcome:
        """Fetch an archive and take out the files that are absent."""
        outcome = self._bring(dataset, replace(archive, required=False))
        if outcome.origin is not None:
            path = self._folder / archive.path
            try:
                extract(path, [self._folder / file.path for file in absent])
            except (OSError, EOFError, tarfile.TarError) as error:
                outcome.notes.append(f"{path}: cannot be unpacked: {error}")
        return outcome

    def _hub_url(self, address: str) -> str:
        repository, _, rest = address.partition("@")
        revision, _, path = rest.partition("/")
        return f"{self._hub}/datasets/{repository}/resolve/{revision}/{path}"


def extract(archive: Path, targets: Sequence[Path]) -> None:
    """Write the members of a tar whose file names are those of ``targets``. Paths in the archive
    are not followed, so that it can't write anywhere else."""
    wanted = {target.name: target for target in targets}
    with tarfile.open(archive) as tar:
        for member in tar:
            target = wanted.get(PurePosixPath(member.name).name)
            content = tar.extractfile(member) if target is not None and member.isfile() else None
            if target is None or content is None:
                continue
            part = target.with_name(target.name + ".part")
            with content, part.open("wb") as out:
                shutil.copyfileobj(content, out)
            part.replace(target)


def write_parquet_rows(parts: Sequence[Path], target: Path) -> int:
    """Write the rows of parquet files as JSON Lines; returns how many. Needs pyarrow."""
    parquet = import_module("pyarrow.parquet")
    temporary = target.with_name(target.name + ".part")
    count = 0
    with temporary.open("w", encoding="utf-8") as out:
        for part in parts:
            for batch in parquet.ParquetFile(part).iter_batches():
                for row in batch.to_pylist():
                    out.write(json.dumps(row, ensure_ascii=False) + "\n")
                    count += 1
    temporary.replace(target)
    return count
