"""The Hugging Face hub: the one place that may use the network, and what it says when there is none."""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from nextturn.probe.errors import DataError, ModelError, one_line

# Text files and safetensors: nothing that could run code.
_WEIGHTS = "*.safetensors"
_FILES = ["*.json", _WEIGHTS, "*.jinja", "*.txt", "*.model", "README.md"]
_PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
_SECONDS = 5


@functools.cache
def unreachable() -> str | None:
    """Why the hub cannot be reached, or None. Asked once: the hub's own libraries retry for half a minute each."""
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return "HF_HUB_OFFLINE is set"
    if any(os.environ.get(name) for name in _PROXIES):
        return None  # only the proxy knows
    address = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    try:
        with socket.create_connection((address.hostname or "", address.port or 443), timeout=_SECONDS):
            return None
    except OSError as error:
        return f"no connection to {address.hostname}: {error.strerror or error}"


def hub_folder(hub_id: str, weights: bool = True) -> Path:
    """Downloads a model's text files, and safetensors unless told not to, into the hub's own cache, or finds them there."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError
    from huggingface_hub.utils import httpx  # httpx under huggingface_hub 1.x, httpx2 under 2.x

    instead = "a local model folder can be given instead"
    offline = unreachable()
    try:
        wanted = _FILES if weights else [pattern for pattern in _FILES if pattern != _WEIGHTS]
        return Path(snapshot_download(hub_id, allow_patterns=wanted, local_files_only=offline is not None))
    except GatedRepoError:
        raise ModelError(f"{hub_id}: access on the hub must be granted first (hf auth login); {instead}") from None
    except RepositoryNotFoundError:
        raise ModelError(f"{hub_id}: neither a local folder nor a model on the hub; {instead}") from None
    except (LocalEntryNotFoundError, HfHubHTTPError, httpx.HTTPError) as error:
        why = f"the hub cannot be reached ({offline or one_line(error)})"
    except (OSError, ValueError) as error:
        why = f"it cannot be downloaded ({one_line(error)})"
    raise ModelError(f"{hub_id}: no local folder of this name, and {why}; {instead}")


def hub_rows(hub_id: str, config: str | None, split: str, file: str | None = None) -> Iterator[dict[str, Any]]:
    """The rows of a data set on the hub, of one `file` of it where its files have different columns.

    Raises:
        DataError: with the reason why it cannot be had.
    """
    reason = unreachable()
    if reason is not None:
        raise DataError(f"the hub cannot be reached ({reason})")
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    try:
        rows = load_dataset(hub_id, config, split=split, data_files=file)
    except (DatasetsError, OSError, ValueError, RuntimeError) as error:
        raise DataError(f"{hub_id} cannot be fetched ({one_line(error)})") from None
    return (dict(row) for row in rows)
