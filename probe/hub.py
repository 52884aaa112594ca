"""Models from the Hugging Face hub: the one place that may use the network."""

from __future__ import annotations

from pathlib import Path

from probe.errors import ModelError
from probe.loading import one_line

# Text files and safetensors: nothing that could run code.
_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]


def hub_folder(hub_id: str) -> Path:
    """Downloads a model's text files and safetensors into the hub's own cache, or finds them there."""
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    instead = "a local model folder can be given instead"
    try:
        return Path(snapshot_download(hub_id, allow_patterns=_FILES))
    except GatedRepoError:
        raise ModelError(f"{hub_id}: access on the hub must be granted first (hf auth login); {instead}") from None
    except RepositoryNotFoundError:
        raise ModelError(f"{hub_id}: neither a local folder nor a model on the hub; {instead}") from None
    except (LocalEntryNotFoundError, HfHubHTTPError, httpx.HTTPError) as error:
        why = f"the hub cannot be reached ({one_line(error)})"
    except (OSError, ValueError) as error:
        why = f"it cannot be downloaded ({one_line(error)})"
    raise ModelError(f"{hub_id}: no local folder of this name, and {why}; {instead}")
