"""Files from the Hugging Face hub and from other addresses, by huggingface_hub. Which files, and
whence, is not known here.

pooch, which is made for the other addresses, cannot take up a broken transfer and deletes a file
with another hash than the known one; so these come by the hub's own download function.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url
from huggingface_hub.errors import (
    HfHubHTTPError,
    HTTPError,  # pyright: ignore[reportPrivateImportUsage]  # of httpx, since 2.0 of httpx2
)
from huggingface_hub.file_download import http_get

from flowright.core.errors import UserError
from flowright.data.sources.dataset import sha256_of

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
            self._unreachable[host] = why = f"{host} can't be reached: {why}"
        elif isinstance(error, HTTPError):
            why += "; call again to go on"
        elif isinstance(error, OSError) and error.filename:
            why = f"{error.filename}: {error.strerror}"
        return why
