"""trl's colocated vLLM: set its memory at startup, and use it for the inline probe.

trl 1.16 starts it in its trainer, one for each process, generates with it in rollouts (train/rollouts.py), and updates its
weights before each generation. What nextturn changes there is in train/overrides.py. It ran on one GPU with vLLM 0.26
(docs/gpu.md); tests/train/test_colocated.py runs trl's own code over a stand-in for vLLM's `LLM`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from nextturn.probe.command.errors import BadInput
from nextturn.probe.engines.base import Engine, ScoreRequest
from nextturn.probe.engines.vllm import RUNNING, VllmEngine, caches_prefixes, outputs
from nextturn.probe.models.folders import ModelFolder
from nextturn.probe.models.weights import read_config
from nextturn.train.sections import RolloutSection


def colocated_settings(args: Any, folder: ModelFolder, rollout: RolloutSection, probed: bool) -> dict[str, Any]:
    """Return the arguments of `vllm.LLM` with which trl's vLLM has memory for all requests that come at once.

    trl sets `max_num_seqs` to the samples of one generation on one process, 32 with recipes/qwen2b_grpo.yaml, whose
    look-ahead asks for 96 at once, and leaves prefix caching to vLLM.

    Args:
        args: trl's GRPOConfig.
        probed: Whether the probe uses it as well.
    """
    config = read_config(folder.base or folder.path)
    return {
        "max_num_seqs": rows_at_once(args, rollout, probed),
        "enable_prefix_caching": caches_prefixes(config.get("text_config") or config),
    }


def rows_at_once(args: Any, rollout: RolloutSection, probed: bool) -> int:
    """Return the most texts that one process's vLLM generates together, up to RUNNING. The others wait in its queue.

    With tensor parallelism the processes of a group ask together.
    """
    samples: int = args.per_device_train_batch_size * args.steps_per_generation * args.vllm_tensor_parallel_size
    ahead = rollout.samples if rollout.mode == "reply" and rollout.window else 1
    return RUNNING if probed else min(RUNNING, samples * max(1, ahead))


class ColocatedVllm(VllmEngine):
    """trl's vLLM as an engine of the probe, with the probe's own limits, stop tokens and seeds.

    Scores are the live model's. trl has vLLM take 4,096 prompt tokens a step, and log probabilities of a prompt take a row of
    the whole vocabulary for each of its tokens, in memory that no plan counts. vLLM also computes each context again for every
    user turn, which the hf engine does once. The engine's name, which the store records, says both.

    Args:
        llm: vLLM's `LLM`, awake.
        scores: The engine that scores, on the live weights.
    """

    name = "vllm+hf"

    def __init__(self, llm: Any, tokenizer: Any, scores: Engine) -> None:
        self.llm, self.tokenizer, self.scores = llm, tokenizer, scores

    def _outputs(
        self, prompts: Sequence[tuple[int, ...]], options: Sequence[dict[str, Any]]
    ) -> Iterator[tuple[int, Any]]:
        """Yield (index, vLLM's RequestOutput) for every prompt.

        Raises:
            BadInput: A request is longer than `train.vllm_max_model_length`.
            EngineError: vLLM failed.
        """
        needed = (len(ids) + option["max_tokens"] for ids, option in zip(prompts, options, strict=True))
        longest, most = max(needed, default=0), self.llm.llm_engine.model_config.max_model_len
        if longest > most:
            raise BadInput(
                f"train.vllm_max_model_length: given {most:,}, but the probe's longest request takes {longest:,} tokens, prompt "
                "and completion; set it higher, lower probe.max_answer_tokens, or leave the longest items out"
            )
        advice = "If memory ran out, lower train.vllm_gpu_memory_utilization, or give probe.engine: hf"
        return outputs(self.llm, prompts, options, "the live model", advice)

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, float]]:
        return self.scores.score(requests)

    def close(self) -> None:
        """Do nothing: the trainer still uses vLLM."""
