"""trl's vLLM in the training processes: how it is started, how it gets the weights, and how the probe asks it.

trl 1.16 builds it in its trainer (`VLLMGeneration` in trl/generation/vllm_generation.py), one for each process, asks it in
rollouts (train/rollouts.py), and brings its weights up to date before each. None of this was run on a GPU; tests/
test_colocated.py runs trl's own code over a stand-in for vLLM's `LLM`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from nextturn.probe.engines.base import Completion, Engine, Request, ScoreRequest
from nextturn.probe.engines.vllm import RUNNING, by_prefix, caches_prefixes, completion, outputs, sampling
from nextturn.probe.errors import BadInput
from nextturn.probe.models import ModelFolder
from nextturn.probe.weights import read_config
from nextturn.train.recipe import RolloutSection

# --- How it is started.
#
# Under ZeRO-3 it is started, and compiles, in a process in which `torch.nn.functional.linear` is DeepSpeed's: `zero.Init` puts
# an autograd function in its place and leaves it there (deepspeed/runtime/zero/partition_parameters.py). It is not taken out
# around vLLM, since that does no harm: vLLM runs and compiles in inference mode, where the function is traced through to the
# same matrix product; and training needs it, or each layer's gathered weights stay in memory.


@contextmanager
def colocated_vllm(args: Any, folder: ModelFolder, rollout: RolloutSection, probed: bool) -> Iterator[None]:
    """A trainer that is made in this block starts its vLLM with room for all that is asked of it.

    trl gives it `max_num_seqs` for the samples of one step on one process, 16 with recipes/qwen2b_grpo.yaml, whose look-ahead
    asks for 48 at once; and it leaves prefix caching to vLLM. Neither is in trl's config, so what is changed is the name by
    which trl's module calls `vllm.LLM`, whose documented arguments these are, and only until the trainer stands.

    Args:
        args: trl's GRPOConfig.
        probed: whether the probe asks it as well.
    """
    if not args.use_vllm or args.vllm_mode != "colocate":
        yield
        return
    from trl.generation import vllm_generation

    config = read_config(folder.base or folder.path)
    ours = {
        "max_num_seqs": rows_at_once(args, rollout, probed),
        "enable_prefix_caching": caches_prefixes(config.get("text_config") or config),
    }
    own = vllm_generation.LLM
    vllm_generation.LLM = lambda **settings: own(**{**settings, **ours})
    try:
        yield
    finally:
        vllm_generation.LLM = own


def rows_at_once(args: Any, rollout: RolloutSection, probed: bool) -> int:
    """The most texts that one process's vLLM is asked for together, up to RUNNING; the others wait in its queue.

    With tensor parallelism the processes of a group ask together.
    """
    samples: int = args.per_device_train_batch_size * args.steps_per_generation * args.vllm_tensor_parallel_size
    ahead = rollout.samples if rollout.mode == "reply" and rollout.window else 1
    return RUNNING if probed else min(RUNNING, samples * max(1, ahead))


# --- How it gets the weights.


def keep_base_weights(trainer: Any) -> None:
    """Has trl's transfer of a LoRA policy to vLLM leave the base weights as they are.

    trl merges the adapter into them in place, sends them, and subtracts it again. In bfloat16 that is no inverse: the base
    drifts at every transfer, also where nothing is learnt, and with it the KL reference (trl issue 6688). So the merged
    weights are copies, as large as the adapted layers, for as long as the transfer takes. Under ZeRO-3 the gathered weights
    are copies already.
    """
    from peft import PeftModel

    plugin = trainer.accelerator.state.deepspeed_plugin
    spread = plugin is not None and plugin.zero_stage == 3
    if not trainer.use_vllm or spread or not isinstance(trainer.model, PeftModel):
        return
    generation = trainer.vllm_generation
    transfer = generation.sync_weights

    def sync_weights() -> None:
        with _copied_base(trainer.model):
            transfer()

    generation.sync_weights = sync_weights


@contextmanager
def _copied_base(model: Any) -> Iterator[None]:
    """The base weights that an adapter changes are copies in this block; afterwards they are the old ones again."""
    from peft.tuners.lora import LoraLayer

    layers: list[Any] = [layer for layer in model.modules() if isinstance(layer, LoraLayer)]
    weights = [layer.get_base_layer().weight for layer in layers]
    before = [weight.data for weight in weights]
    for weight in weights:
        weight.data = weight.data.clone()
    try:
        yield
    finally:
        for weight, data in zip(weights, before, strict=True):
            weight.data = data


# --- How the probe asks it.


@contextmanager
def awake(generation: Any) -> Iterator[Any]:
    """trl's vLLM (the `LLM`) with the live weights, ready to generate; asleep again afterwards where the recipe has it sleep.

    Enter and leave it on all processes together: under ZeRO-3 the weights are gathered.
    """
    generation.sync_weights()  # wakes what holds the weights
    if generation.enable_sleep_mode:
        generation.llm.wake_up(tags=["kv_cache"])
    try:
        yield generation.llm
    finally:
        if generation.enable_sleep_mode:
            generation.llm.sleep(level=2)
            generation._llm_weights_sleeping = (
                True  # trl's note that they have to be sent again, as after its own sleep
            )


class ColocatedVllm:
    """trl's vLLM as an engine of the probe: its own requests, limits, stop tokens and seeds, as in probe/engines/vllm.py.

    Scores are the live model's: trl has vLLM take 4,096 prompt tokens a step, and log-probabilities of a prompt take a row of
    the whole vocabulary for each of its tokens, in memory that nobody has planned beside a trainer. It also computes each
    context anew for every user turn, which the hf engine does once.

    The name, by which the store tells what was made by whom, says both.

    Args:
        scores: what scores; on the live weights.
    """

    name = "vllm+hf"

    def __init__(self, llm: Any, tokenizer: Any, scores: Engine) -> None:
        self.llm = llm
        self.tokenizer = tokenizer
        self.scores = scores

    def batches(self, requests: Sequence[Request]) -> list[list[int]]:
        """Every request alone, since vLLM chooses the neighbours."""
        return [[index] for index in by_prefix([request.prompt_ids for request in requests])]

    def stream(self, requests: Sequence[Request]) -> Iterator[tuple[int, Completion]]:
        """Yields the completions of a chunk when all of it is finished.

        Raises:
            BadInput: a request is longer than `train.vllm_max_model_length`.
            EngineError: vLLM failed.
        """
        prompts = [request.prompt_ids for request in requests]
        longest = max((len(request.prompt_ids) + request.max_tokens for request in requests), default=0)
        most = self.llm.llm_engine.model_config.max_model_len
        if longest > most:
            raise BadInput(
                f"train.vllm_max_model_length: {most:,}, and the probe's longest request takes {longest:,} tokens, prompt and "
                "completion; set it higher, or lower probe.max_answer_tokens, or leave the longest items out"
            )
        advice = "If memory ran out, lower train.vllm_gpu_memory_utilization, or give probe.engine: hf"
        options = [sampling(request) for request in requests]
        for index, output in outputs(self.llm, prompts, options, "the live model", advice):
            yield index, completion(output, self.tokenizer)

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, float]]:
        return self.scores.score(requests)

    def close(self) -> None:
        """The trainer goes on with it."""
