"""An exported folder on the Hugging Face hub. The key comes from the environment alone: one that is
kept on the machine may be somebody else's.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    HTTPError,  # pyright: ignore[reportPrivateImportUsage]  # of httpx, since 2.0 of httpx2
)

from flowright.core.errors import RunError, UserError

TOKEN = "HF_TOKEN"


def hub_token(environment: Mapping[str, str] = os.environ) -> str:
    """Raises UserError where there is none."""
    token = environment.get(TOKEN, "").strip()
    if not token:
        raise UserError(f"--push-to-hub: {TOKEN} is not set; export a token that may write")
    return token


def push(folder: Path, name: str, token: str, endpoint: str | None = None) -> str:
    """Upload a folder as the repository ``name``, private where it is new. Its address. Raises
    RunError for what the hub refuses or where it is not to be had; the folder stays."""
    api = HfApi(endpoint=endpoint, token=token)
    try:
        made = api.create_repo(name, private=True, exist_ok=True)
        api.upload_folder(repo_id=made.repo_id, folder_path=folder)
    except (HfHubHTTPError, HFValidationError, HTTPError, OSError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RunError(
            f"--push-to-hub {name}: {first}; {folder} is written: upload it by "
            f"hf upload {name} {folder}"
        ) from error
    return str(made)
