"""Generation and scoring with vLLM, in this process: many times faster than transformers where there is a GPU.

Only what stays the same from vLLM 0.27 to 0.31 is used: `LLM` to load, its engine's `add_request` and `step`, so that
every completion is handed on when it is finished and nothing waits for a straggler. Prompts go in as token ids and
completions come out as token ids; vLLM's own stop tokens, sampling defaults and decoding are not used, so that both
engines in this process mean the same by a request.

Each completion has a seed of its own on a GPU. vLLM's CPU build crashes with such seeds now and then ("CPU Generator
does not use offset"), so there the engine as a whole is seeded: a sampled completion then hangs on what else was
running, and a rerun may draw another. On either device rounding hangs on the neighbours and on what was cached, so a
greedy text may differ between runs where two tokens are as good as equally likely: of 32 texts of 96 tokens that
SmolLM2-135M made twice on a CPU, 14 came again in bfloat16 and all 32 in float32.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from multiprocessing import active_children
from subprocess import Popen
from typing import TYPE_CHECKING, Any

from probe.engines.base import Completion, Request, ScoreRequest
from probe.engines.vllm_install import import_vllm
from probe.engines.vllm_load import checkpoint_dtype, end_with_this_process, load, text_config
from probe.errors import BadInput, CannotScore, EngineError
from probe.models import ModelFolder
from probe.errors import one_line
from probe.settings import VllmSection

if TYPE_CHECKING:
    from vllm import LLM

# Requests that vLLM knows of at a time: enough that its queue is never empty, few enough that it starts at once.
_KNOWN = 1024
# Where the recipe names no max_model_len there is room for twice what the first requests need, since user turns come
# after the answers and on top of them; for no less than this many tokens.
_LEAST_LENGTH = 4096


class VllmEngine:
    """Completions and scores from vLLM; the model is loaded with the first request.

    Args:
        folder: a LoRA adapter is merged into a whole model once, which is kept in the model cache: vLLM leaves out
            adapter weights that it cannot place, without an error.
        tokenizer: only its `decode` is used.
        dtype: "auto" keeps the type of the checkpoint, as the hf engine does; vLLM's own "auto" halves float32.
    """

    name = "vllm"

    def __init__(
        self, folder: ModelFolder, tokenizer: Any, section: VllmSection, dtype: str = "auto", seed: int = 0
    ) -> None:
        self.folder = folder
        self.tokenizer = tokenizer
        self.section = section
        self.dtype = checkpoint_dtype(folder) if dtype == "auto" else dtype
        self.seed = seed
        self._llm: LLM | None = None
        self._guard: Popen[bytes] | None = None
        self._length = 0
        self._asked = 0

    def batches(self, requests: Sequence[Request]) -> list[list[int]]:
        """Every request alone, since vLLM chooses the neighbours; in the order in which they are begun."""
        return [[index] for index in _by_prefix([request.prompt_ids for request in requests])]

    def stream(self, requests: Sequence[Request]) -> Iterator[tuple[int, Completion]]:
        """Yields each completion when it is finished.

        Raises:
            BadInput: vLLM is not installed, or a request is longer than the model or the recipe allows.
            EngineError: vLLM could not load the model, or died.
        """
        prompts = [request.prompt_ids for request in requests]
        for index, output in self._outputs(prompts, [sampling(request) for request in requests]):
            (made,) = output.outputs
            if made.finish_reason not in ("stop", "length"):
                raise EngineError(f"vLLM ended a completion with {made.finish_reason!r}, wanted stop or length")
            tokens = list(made.token_ids)
            if made.finish_reason == "stop":
                tokens.pop()  # the stop token
            yield (
                index,
                Completion(self.tokenizer.decode(tokens), len(tokens), made.finish_reason, tuple(made.token_ids)),
            )

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
        """Yields (index, vLLM's RequestOutput) for every prompt, in the order in which they are finished."""
        if not prompts:
            return
        import_vllm()
        from vllm import SamplingParams, TokensPrompt
        from vllm.exceptions import VLLMClientError, VLLMError
        from vllm.platforms import current_platform
        from vllm.sampling_params import RequestOutputKind

        always = {"ignore_eos": True, "detokenize": False, "output_kind": RequestOutputKind.FINAL_ONLY}
        if current_platform.is_cpu():
            always["seed"] = None
        engine = self._loaded(prompts, options).llm_engine
        waiting = _by_prefix(prompts)[::-1]
        running: dict[str, int] = {}
        try:
            while waiting or running:
                while waiting and len(running) < _KNOWN:
                    index, name = waiting.pop(), str(self._asked)
                    self._asked += 1
                    running[name] = index
                    (prompt,) = engine.renderer.render_cmpl([TokensPrompt(prompt_token_ids=list(prompts[index]))])
                    engine.add_request(name, prompt, SamplingParams(**{**options[index], **always}))
                for output in engine.step():
                    yield running.pop(output.request_id), output
        except VLLMClientError as error:
            raise BadInput(f"{self.folder.name}: vLLM does not take a request: {one_line(error)}") from None
        except (VLLMError, RuntimeError) as error:
            raise EngineError(
                f"{self.folder.name}: vLLM failed with {len(waiting) + len(running)} requests to go "
                f"({one_line(error)}); its own lines above say why. If memory ran out, lower "
                "probe.vllm.gpu_memory_utilization, or set probe.grounding: false, whose scores need memory beside it"
            ) from error
        finally:
            # After an error or an early end, what is still running would come out of the next call's steps.
            if waiting or running:
                self.close()

    def _loaded(self, prompts: Sequence[tuple[int, ...]], options: Sequence[dict[str, Any]]) -> LLM:
        """vLLM with room for the longest of the requests; loaded anew where it was loaded with too little."""
        needs = [(len(prompt), option["max_tokens"]) for prompt, option in zip(prompts, options, strict=True)]
        prompt, new = max(needs, key=sum)
        needed, asked = prompt + new, self.section.max_model_len
        most = asked or text_config(self.folder).get("max_position_embeddings")
        if most and needed > most:
            whose = "probe.vllm.max_model_len" if asked else "max_position_embeddings in the model's config.json"
            raise BadInput(
                f"{self.folder.name}: the longest request takes {needed:,} tokens, {prompt:,} of prompt and {new:,} "
                f"for the completion, and {whose} is {most:,}; set probe.vllm.max_model_len higher if the model can "
                "take more, or lower probe.max_answer_tokens, or leave the longest items out"
            )
        if self._llm is None or needed > self._length:
            self.close()
            wanted = max(_LEAST_LENGTH, 2 * needed)
            self._length = asked or (min(wanted, most) if most else wanted)
            others = active_children()
            self._llm = load(self.folder, self.section, self.dtype, self.seed, self._length)
            if own := [child for child in active_children() if child not in others]:
                self._guard = end_with_this_process(own)
        return self._llm


def sampling(request: Request) -> dict[str, Any]:
    """A request in the words of vLLM's SamplingParams; only its own stop tokens end it."""
    return {
        "temperature": request.temperature,
        "max_tokens": request.max_tokens,
        "stop_token_ids": list(request.stop_ids),
        "seed": request.seed if request.temperature > 0 else None,
    }


def _by_prefix(prompts: Sequence[tuple[int, ...]]) -> list[int]:
    """Indices in an order in which prompts that begin alike stand together, so that their cache is still there."""
    return sorted(range(len(prompts)), key=lambda index: prompts[index])
