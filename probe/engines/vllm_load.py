"""Loads a model folder into vLLM: the import, the settings, the type of the weights, and adapters made whole."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.errors import BadInput, EngineError
from probe.files import sha256_text
from probe.models import ModelFolder, fingerprint, load_model, parameter_count
from probe.models.conversions import made_once
from probe.models.loading import load_any_tokenizer, one_line
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
_ENVIRONMENT = {
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_WORKER_MULTIPROCESSING_METHOD": "spawn",
}
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
    # User turns that share a context gain from prefix caching, which is on by default. For Qwen3.5's linear layers it
    # is experimental and only sees blocks of 528 tokens and more (vLLM issues 40696, 53912).
    linear = "linear_attention" in (text_config(folder).get("layer_types") or ())
    caching = {"enable_prefix_caching": False} if linear else {}
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
            gpu_memory_utilization=section.gpu_memory_utilization,
            tensor_parallel_size=section.tensor_parallel_size,
            enforce_eager=section.enforce_eager,
            generation_config="vllm",
            logprobs_mode="raw_logprobs",
            **caching,
        )
    except (VLLMError, RuntimeError, ValueError, OSError, ImportError, AssertionError) as error:
        raise EngineError(
            f"{folder.name}: vLLM {vllm.__version__} could not load it ({one_line(error)}); its own lines above say "
            "why. If memory is short, lower probe.vllm.gpu_memory_utilization to what is free, or "
            "probe.vllm.max_model_len; probe.engine: hf does without vLLM"
        ) from error


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


def import_vllm() -> Any:
    """The package, set up for a command whose standard output is the results.

    Raises:
        BadInput: it is not there, or does not load here.
    """
    # A process of its own is started anew, not forked: torch's threads may be running here already.
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import vllm
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "vllm"
        raise BadInput(
            f"probe.engine: vllm needs the package vllm, which {'is not installed' if missing else 'does not load'} "
            f"here{'' if missing else f' ({one_line(error)})'}; on a machine with a GPU: pip install -e '.[gpu]', "
            "without the constraints file. Or set probe.engine: hf"
        ) from None
    return vllm


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
