"""The Hugging Face hub: the one module that uses the network for models and data sets, and its errors without network."""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from nextturn.probe.command.errors import DataError, ModelError, one_line

# Text files and safetensors: files that cannot run code.
_WEIGHTS = "*.safetensors"
_TEXTS = ["*.json", "*.jinja", "*.txt", "*.model", "README.md"]
_PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
_CONNECT_S = 5


@functools.cache
def unreachable() -> str | None:
    """Return why the hub cannot be reached, or None. Checked once, because the hub's libraries retry for half a minute."""
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return "HF_HUB_OFFLINE is set"
    if any(os.environ.get(name) for name in _PROXIES):
        return None  # only the proxy knows
    address = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    try:
        with socket.create_connection((address.hostname or "", address.port or 443), timeout=_CONNECT_S):
            return None
    except OSError as error:
        return f"no connection to {address.hostname}: {error.strerror or error}"


def hub_folder(hub_id: str, weights: bool = True) -> Path:
    """Return the folder of a model in the hub's own cache, after downloading what is missing.

    Args:
        hub_id: Such as org/model.
        weights: False leaves out the weights.

    Raises:
        ModelError: The hub cannot be reached or has no such model.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
    from huggingface_hub.utils import httpx  # httpx under huggingface_hub 1.x, httpx2 under 2.x

    offline = unreachable()
    patterns = [*_TEXTS, _WEIGHTS] if weights else _TEXTS
    try:
        return Path(snapshot_download(hub_id, allow_patterns=patterns, local_files_only=offline is not None))
    except GatedRepoError:
        problem = "access on the hub must be granted first (hf auth login)"
    except RepositoryNotFoundError:
        problem = "neither a local folder nor a model on the hub"
    except (OSError, ValueError, httpx.HTTPError) as error:  # the hub's own errors are OSErrors
        reason = f"the hub cannot be reached: {offline}" if offline else one_line(error)
        problem = f"no local folder of this name, and it cannot be downloaded ({reason})"
    raise ModelError(f"{hub_id}: {problem}; a local model folder can be given instead")


def hub_rows(hub_id: str, config: str | None, split: str, file: str | None = None) -> Iterator[dict[str, Any]]:
    """Return the rows of a data set on the hub.

    Args:
        file: One file of the data set, if its files have different columns.

    Raises:
        DataError: The data set cannot be fetched; the message says why.
    """
    if reason := unreachable():
        raise DataError(f"the hub cannot be reached ({reason})")
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    try:
        rows = load_dataset(hub_id, config, split=split, data_files=file)
    except (DatasetsError, OSError, ValueError, RuntimeError) as error:
        raise DataError(f"{hub_id} cannot be fetched ({one_line(error)})") from None
    return (dict(row) for row in rows)
