"""Loads a model folder into vLLM: the settings, the type of the weights, and adapters made whole."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.engines.vllm_install import import_vllm
from probe.errors import EngineError
from probe.files import sha256_text
from probe.models import ModelFolder, fingerprint, load_model, parameter_count
from probe.models.conversions import made_once
from probe.models.loading import load_any_tokenizer
from probe.errors import one_line
from probe.models.weights import count_parameters, read_config, tokenizer_sha256
from probe.settings import VllmSection

if TYPE_CHECKING:
    from vllm import LLM

# Rows that run together. vLLM's own choice depends on the GPU, and on a large one asks for more rows than it then
# finds room for in the state of Qwen3.5's linear layers.
_RUNNING = 256
# Prompt tokens of one step. Scores take a row of the whole vocabulary for each, in memory that vLLM does not plan
# for: 3 GB with Qwen3.5's 248,320 tokens, and 12 GB at vLLM's own 8,192 tokens a step.
_STEP_TOKENS = 2048
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# Of the memory that is free when vLLM starts: what it may take for weights and cache where the recipe does not say.
_SHARE_OF_FREE = {"gpu": 0.9, "cpu": 0.5}
_TYPE_NAMES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def load(folder: ModelFolder, section: VllmSection, dtype: str, seed: int, length: int) -> LLM:
    """vLLM with the model, for requests of up to `length` tokens, prompt and completion together.

    Raises:
        BadInput: vLLM is not installed.
        EngineError: it could not load the model; the message says what to try.
    """
    vllm = import_vllm()
    from vllm.exceptions import VLLMError

    path = whole_folder(folder, dtype)
    # User turns that share a context gain from prefix caching. For Qwen3.5's linear layers it is experimental and only
    # sees blocks of 528 tokens and more (vLLM issues 40696, 53912).
    linear = "linear_attention" in (text_config(folder).get("layer_types") or ())
    try:
        return vllm.LLM(
            str(path),
            tokenizer=str(path if folder.base else folder.tokenizer_path),
            trust_remote_code=False,
            dtype=dtype,
            seed=seed % 2**32,
            max_model_len=length,
            max_num_seqs=_RUNNING,
            max_num_batched_tokens=_STEP_TOKENS,
            gpu_memory_utilization=section.gpu_memory_utilization or free_share(section.tensor_parallel_size),
            tensor_parallel_size=section.tensor_parallel_size,
            enforce_eager=section.enforce_eager,
            generation_config="vllm",
            logprobs_mode="raw_logprobs",
            enable_prefix_caching=not linear,
        )
    except (VLLMError, RuntimeError, ValueError, OSError, ImportError, AssertionError) as error:
        raise EngineError(
            f"{folder.name}: vLLM {vllm.__version__} could not load it ({one_line(error)}); its own lines above say "
            f"why. {_advice(error)}; probe.engine: hf does without vLLM"
        ) from error


def _advice(error: Exception) -> str:
    # vLLM reads a Qwen3.5 of text alone with the file of the multimodal one, which imports torchvision.
    if "failed to be inspected" in str(error):
        return (
            "Its Qwen3.5 needs a torchvision that fits this torch: try `python -c 'import torchvision'`; on a machine "
            "without a GPU, pip install torchvision --index-url https://download.pytorch.org/whl/cpu"
        )
    return "If memory is short, lower probe.vllm.gpu_memory_utilization to what is free, or probe.vllm.max_model_len"


def free_share(devices: int) -> float:
    """The share of all memory that vLLM may take beside what else runs here, such as a trainer: part of what is free.

    vLLM itself takes 0.9 of a GPU, and refuses to start where less than that is free.
    """
    import torch

    if torch.cuda.is_available():
        memory = [torch.cuda.mem_get_info(device) for device in range(min(devices, torch.cuda.device_count()))]
        return _SHARE_OF_FREE["gpu"] * min(free / total for free, total in memory)
    import psutil

    here = psutil.virtual_memory()
    return float(_SHARE_OF_FREE["cpu"] * here.available / here.total)


def checkpoint_dtype(folder: ModelFolder) -> str:
    """The type in which transformers would load the folder: its config's, else that of most of its weights."""
    config, text = read_config(folder.base or folder.path), text_config(folder)
    for named in (config.get("dtype"), config.get("torch_dtype"), text.get("dtype"), text.get("torch_dtype")):
        if named in _BYTES:
            return str(named)
    by_dtype = count_parameters(folder.base or folder.path)["by_dtype"]
    return _TYPE_NAMES.get(max(by_dtype, key=lambda name: by_dtype[name]), "auto")


def whole_folder(folder: ModelFolder, dtype: str) -> Path:
    """The folder itself, or for a LoRA adapter the cached folder of the merged model, made on the first call."""
    if folder.base is None:
        return folder.path

    def make(made: Path) -> None:
        load_model(folder, dtype, "cpu").save_pretrained(made)
        load_any_tokenizer(folder.tokenizer_path).save_pretrained(made)

    source = sha256_text(f"{fingerprint(folder)} {tokenizer_sha256(folder.tokenizer_path)} {dtype}")
    needed = parameter_count(folder)["total"] * _BYTES.get(dtype, 4)
    return made_once(f"merged-{source[:16]}", source, needed, make)


def end_with_this_process(children: Iterable[BaseProcess]) -> subprocess.Popen[bytes]:
    """Starts a small process that kills `children` once this one is gone, however it went; kill it to call that off.

    vLLM's engine is a process of its own. It outlives this one where that is killed, and keeps the GPU's memory.
    """
    numbers = " ".join(str(child.pid) for child in children)
    # The pipe ends with this process. A session of its own, since Ctrl-C reaches every process of the terminal's.
    return subprocess.Popen(
        ["/bin/sh", "-c", f"read _; kill -9 {numbers}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def text_config(folder: ModelFolder) -> dict[str, Any]:
    """The folder's configuration, or its text part where the model has several."""
    config = read_config(folder.base or folder.path)
    return config.get("text_config") or config
