"""Fetching the upstream files: the Hugging Face hub first, then the official address, then a folder
of files that were brought otherwise. Nothing is converted to tasks here.

Where the hub has the rows as parquet only, ``datasets`` reads them, and they are written as JSON
Lines (``<file>.hub.jsonl``), which the converters read as well. A wrong hash is reported with both
values and the file stays: upstream may have published another version.
"""

import json
import shutil
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url
from huggingface_hub.errors import (
    HfHubHTTPError,
    HTTPError,  # pyright: ignore[reportPrivateImportUsage]  # of httpx, since 2.0 of httpx2
)
from huggingface_hub.file_download import http_get

from flowright.core.errors import UserError
from flowright.core.files import replacing
from flowright.core.network_faults import network_fault, proxy_for
from flowright.data.sources.dataset import File, Source, hub_rows, other_names, sha256_of

# By name: huggingface_hub exports the base of its HTTP client's errors only.
_UNREACHABLE = ("ConnectError", "ConnectTimeout", "OfflineModeIsEnabled")


class FetchError(UserError):
    """A file could not be fetched from an address; another address may have it."""


class Web:
    """Downloads, which show their progress. A broken transfer is taken up again, by a later call as
    well; a host that can't be reached is not asked a second time. ``hub`` is the address of another
    hub than that of HF_ENDPOINT; HF_HUB_DOWNLOAD_TIMEOUT is the silence of a server that is borne,
    in seconds."""

    def __init__(self, hub: str | None = None) -> None:
        self._hub = (hub or constants.ENDPOINT).rstrip("/")
        self._unreachable: dict[str, str] = {}

    def from_hub(self, address: str, target: Path) -> None:
        """Bring ``owner/name@revision/path`` of the hub's datasets to ``target``. Raises
        FetchError."""
        repository, _, rest = address.partition("@")
        revision, _, path = rest.partition("/")
        place: dict[str, Any] = {"repo_type": "dataset", "revision": revision}
        url = hf_hub_url(repository, path, **place, endpoint=self._hub)
        folder = target.with_name(target.name + ".hub")  # keeps what came of a broken transfer
        with self._asking(url):
            get_hf_file_metadata(url)  # unlike the download, asks once
            folder.mkdir(parents=True, exist_ok=True)
            found = hf_hub_download(repository, path, **place, local_dir=folder, endpoint=self._hub)
            Path(found).replace(target)
        shutil.rmtree(folder, ignore_errors=True)

    def from_address(self, url: str, target: Path, sha256: str | None = None) -> None:
        """Bring ``url`` to ``target``; go on with what an earlier call left where ``sha256`` can
        tell whether the whole is of one version. Raises FetchError."""
        part = target.with_name(target.name + ".part")
        with self._asking(url):
            part.parent.mkdir(parents=True, exist_ok=True)
            start = part.stat().st_size if sha256 and part.exists() else 0
            with part.open("r+b" if start else "wb") as out:
                out.seek(start)
                try:
                    http_get(url, out, resume_size=start, displayed_filename=target.name)
                except HfHubHTTPError as error:
                    if error.response.status_code != 416:  # the part is not a beginning of it
                        raise
            if start and sha256_of(part) != sha256:
                part.unlink()
                self.from_address(url, target)
                return
            with part.open("rb") as file:
                web_page = file.read(64).lstrip().startswith(b"<")
            if web_page:
                part.unlink()
                raise FetchError(f"{url}: the server sent a web page instead of the file")
            part.replace(target)

    @contextmanager
    def _asking(self, url: str) -> Iterator[None]:
        """Turn what can go wrong into a FetchError of one line."""
        host = urlsplit(url).netloc
        if host in self._unreachable:
            raise FetchError(f"{url}: {self._unreachable[host]}")
        try:
            yield
        except (HTTPError, OSError, ValueError) as error:
            raise FetchError(f"{url}: {self._explained(error, host)}") from None

    def _explained(self, error: Exception, host: str) -> str:
        if isinstance(error, HfHubHTTPError):
            return f"HTTP {error.response.status_code} {error.response.reason_phrase}"
        why = str(error).strip().partition("\n")[0] or type(error).__name__
        if type(error).__name__ in _UNREACHABLE:
            address = f"https://{host}"
            why = network_fault(error, address, proxy_for(address, None)) or why
            self._unreachable[host] = why = f"{host} can't be reached: {why}"
        elif isinstance(error, HTTPError):
            why += "; call again to go on"
        elif isinstance(error, OSError) and error.filename:
            why = f"{error.filename}: {error.strerror}"
        return why


Origin = Literal["present", "hub", "hub rows", "official", "folder"]  # in the order of trying


@dataclass(slots=True)
class Download:
    """Outcome for one file. ``origin`` is None for a missing file, ``differs`` if its SHA-256 is
    not the known one; ``notes`` name failures and oddities, a line each."""

    dataset: str
    path: str
    required: bool
    origin: Origin | None = None
    size: int = 0
    differs: bool = False
    notes: list[str] = field(default_factory=list)


class Downloader:
    """Brings files to ``folder``. ``web`` None leaves the network alone; ``from_folder`` has the
    same layout as ``folder``."""

    def __init__(self, folder: Path, *, web: Web | None, from_folder: Path | None = None) -> None:
        self._folder = folder
        self._web = web
        self._from = from_folder

    def run(self, datasets: Iterable[Source]) -> Iterator[Download]:
        """Fetch all files of the datasets, one after another, and say what became of each. A file
        that fails never stops the others."""
        for dataset in datasets:
            absent = [f for f in dataset.files if not (self._folder / f.path).is_file()]
            if dataset.archive is not None and any(file.required for file in absent):
                yield self._unpack(dataset.name, dataset.archive, absent)
            for file in dataset.files:
                yield self._bring(dataset.name, file)

    def _bring(self, dataset: str, file: File) -> Download:
        download = Download(dataset, file.path, file.required)
        for origin in get_args(Origin):
            try:
                if self._comes_from(origin, file, download):
                    self._check(file, download)
                    download.origin = origin
                    break
            except FetchError as error:
                download.notes += error.problems
            except OSError as error:
                download.notes.append(f"{error.filename or file.path}: {error.strerror or error}")
        if download.origin is not None and file.upstream is not None:
            self._copy_as_upstream(file.path, file.upstream, download)
        return download

    def _copy_as_upstream(self, path: str, place: str, download: Download) -> None:
        folder = self._folder.resolve()
        copy = folder.parent / place
        if folder.name != "raw" or copy.exists():
            return
        try:
            copy.parent.mkdir(parents=True, exist_ok=True)
            with replacing(copy) as part:
                shutil.copyfile(folder / path, part)
            download.notes.append(f"copied to {self._folder.parent / place}, its place upstream")
        except OSError as error:
            download.notes.append(f"{copy}: not copied: {error.strerror or error}")

    def _comes_from(self, origin: Origin, file: File, download: Download) -> bool:
        """Try to bring the file from one origin; False if that has none."""
        target = self._folder / file.path
        match origin:
            case "present" if target.is_file():
                return True
            case "present":
                found = [p for p in other_names(file.path) if (self._folder / p).is_file()]
                download.path = found[0] if found else file.path
                return bool(found)
            case "hub" if self._web and file.hub:
                self._web.from_hub(file.hub, target)
                return True
            case "hub rows" if self._web and file.parquet:
                return self._rows_from_hub(self._web, file, download)
            case "official" if self._web and file.url:
                self._web.from_address(file.url, target, file.sha256)
                return True
            case "folder" if self._from and (self._from / file.path).is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                with replacing(target) as part:
                    shutil.copyfile(self._from / file.path, part)
                return True
            case "folder" if self._from:
                download.notes.append(f"{self._from / file.path}: no such file")
        return False

    def _rows_from_hub(self, web: Web, file: File, download: Download) -> bool:
        if find_spec("datasets") is None:
            download.notes.append(
                f"{file.path}: the hub has it as parquet only: pip install datasets to use that"
            )
            return False
        target = self._folder / hub_rows(file.path)
        parts = [target.with_name(f"{target.name}.{i}.parquet") for i in range(len(file.parquet))]
        for address, part in zip(file.parquet, parts, strict=True):
            if not part.is_file():
                web.from_hub(address, part)
        try:
            write_parquet_rows(parts, target)
        except ValueError as error:  # of which pyarrow's errors are
            raise FetchError(f"{target}: the hub's parquet can't be read: {error}") from None
        finally:
            for part in parts:
                part.unlink()
        download.path = hub_rows(file.path)
        return True

    def _check(self, file: File, download: Download) -> None:
        path = self._folder / download.path
        download.size = path.stat().st_size
        if download.path == file.path and file.sha256:
            found = sha256_of(path)
            download.differs = found != file.sha256
            if download.differs:
                download.notes.append(f"{path}: SHA-256 is {found}, known is {file.sha256}")

    def _unpack(self, dataset: str, archive: File, absent: Sequence[File]) -> Download:
        """Fetch an archive and take out the files that are absent."""
        download = self._bring(dataset, replace(archive, required=False))
        if download.origin is not None:
            path = self._folder / archive.path
            try:
                extract(path, [self._folder / file.path for file in absent])
            except (OSError, EOFError, tarfile.TarError) as error:
                download.notes.append(f"{path}: cannot be unpacked: {error}")
        return download


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
            with content, replacing(target) as part, part.open("wb") as out:
                shutil.copyfileobj(content, out)


def write_parquet_rows(parts: Sequence[Path], target: Path) -> int:
    """Write the rows of parquet files as JSON Lines; returns how many. Needs ``datasets``."""
    from datasets import load_dataset  # pyright: ignore[reportMissingImports]

    count = 0
    with replacing(target) as temporary, temporary.open("w", encoding="utf-8") as out:
        for part in parts:
            for row in load_dataset("parquet", data_files=str(part), split="train", streaming=True):
                out.write(json.dumps(row, ensure_ascii=False) + "\n")
                count += 1
    return count
