"""Probes the model in training: the base before step 1, and every checkpoint right after it is saved.

All ranks share the work. Rank 0 runs the probe as `probe run` would; its engine sends each batch of prompts to
all ranks, every rank completes its share on the live weights (gathered under ZeRO-3), and rank 0 collects.
The results lie in RUN_DIR/probe/{base,step-N}, the comparison of all of them in RUN_DIR/probe/comparison, which rank 0 makes
while the others go on to where the next step needs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from probe.chat import Chat
from probe.compare import compare
from probe.engines.base import Completion, Engine, Request, ScoreRequest
from probe.engines.hf import HfEngine, live_model
from probe.errors import BadInput, NextturnError
from probe.models import ModelFolder, resolve
from probe.run import LoadedSet, load_sets, model_info, run_probe
from probe.settings import ProbeSection
from probe.terminal import say
from probe.tracking import declare_figures, track_probe
from train.checkpoints import watch_line


def sets_to_probe(probe: ProbeSection | None) -> list[LoadedSet]:
    """What is asked, read before training starts so that a missing set stops nothing later; none unless `when: inline`."""
    return load_sets(probe) if probe and probe.when == "inline" else []


def watched_elsewhere(probe: ProbeSection | None) -> bool:
    return probe is not None and probe.when == "watch"


def probe_checkpoints(
    trainer: Any, probe: ProbeSection | None, folder: ModelFolder, chat: Chat, sets: Sequence[LoadedSet]
) -> None:
    """Has `trainer` probe as `probe.when` says, and say how where that is elsewhere; call it after `mark_checkpoints`.

    Args:
        folder: of the base model.

    Raises:
        BadInput: `probe.dtype` is none that DeepSpeed's live weights can be measured in.
    """
    if probe is None or probe.when == "never":
        return
    if probe.when == "watch":
        say(watch_line(Path(trainer.args.output_dir)))
        trainer.add_callback(WatchedCallback())
        return
    if probe.dtype != "auto" and trainer.is_deepspeed_enabled:
        raise BadInput(f"probe.dtype: {probe.dtype}, wanted auto: DeepSpeed's live weights are measured as they are")
    trainer.add_callback(ProbeCallback(trainer, probe, folder, chat, sets))


class ProbeCallback(TrainerCallback):
    """Runs the probe inside training and hands its results to the tracker."""

    def __init__(
        self, trainer: Any, probe: ProbeSection, folder: ModelFolder, chat: Chat, sets: Sequence[LoadedSet]
    ) -> None:
        self.trainer, self.probe, self.folder, self.chat, self.sets = trainer, probe, folder, chat, sets
        self.run_dir = Path(trainer.args.output_dir)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 0:
            self._measure("base", 0, self.folder)
        else:  # resumed: the live weights are those of the checkpoint, whose probe a kill may have cut short
            self.on_save(args, state, control)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.accelerator.wait_for_everyone()  # until the checkpoint is marked, by which its model is named
        step = state.global_step
        self._measure(f"step-{step}", step, resolve(str(self.run_dir / f"checkpoint-{step}")))

    def _measure(self, label: str, step: int, folder: ModelFolder) -> None:
        accelerator, out = self.trainer.accelerator, self.run_dir / "probe" / label
        accelerator.wait_for_everyone()
        with live_model(self.trainer, self.probe.dtype) as model:
            shared = SharedEngine(HfEngine(model, self.chat.tokenizer, self.probe.batch_tokens), accelerator)
            if accelerator.is_main_process:
                try:
                    info = model_info(folder, self.chat, label, step)
                    run_probe(shared, self.chat, info, self.probe, out, self.sets)
                finally:
                    shared.close()
            else:
                shared.serve()
        if accelerator.is_main_process:
            compare([self.run_dir], self.run_dir / "probe" / "comparison")
            track_probe(out, self.run_dir)


class WatchedCallback(TrainerCallback):
    """Stands where watchers measure the run: what they have shown must stay declared in the run that they share."""

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            declare_figures(Path(args.output_dir))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.on_save(args, state, control)


# --- One engine on all ranks.

# Requests per rank and round: enough to fill batches, few enough that a kill loses little.
_ROUND = 64


class SharedEngine:
    """An engine over all ranks: rank 0 streams, the others `serve` until rank 0 closes."""

    def __init__(self, engine: Engine, accelerator: Any) -> None:
        self.engine = engine
        self.name = engine.name
        self.accelerator = accelerator
        self._failed = False

    def batches(self, requests: Sequence[Request]) -> list[list[int]]:
        if self.accelerator.num_processes == 1:  # the same batches, and so the same ties, as `probe run`
            return self.engine.batches(requests)
        return self._rounds([request.prompt_ids for request in requests])

    def stream(self, requests: Sequence[Request]) -> Iterator[tuple[int, Completion]]:
        return self._share("stream", requests, [request.prompt_ids for request in requests])

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, float]]:
        return self._share("score", requests, [request.prefix_ids for request in requests])

    def _share(self, method: str, requests: Sequence[Any], prompts: Sequence[tuple[int, ...]]) -> Iterator[Any]:
        if self.accelerator.num_processes == 1:
            yield from getattr(self.engine, method)(requests)
            return
        for indices in self._rounds(prompts):
            for position, done in self._round(method, [requests[index] for index in indices]):
                yield indices[position], done

    def serve(self) -> None:
        """Does this rank's shares until rank 0 closes."""
        while self._round() is not None:
            pass

    def close(self) -> None:
        from accelerate.utils import broadcast_object_list

        if self.accelerator.num_processes > 1 and not self._failed:  # after a failure every rank has left already
            broadcast_object_list([None])

    def _rounds(self, prompts: Sequence[tuple[int, ...]]) -> list[list[int]]:
        """Equal prompts stay together, so that a rank prefills a context once for all its samples."""
        order = sorted(range(len(prompts)), key=prompts.__getitem__)
        step = _ROUND * self.accelerator.num_processes
        return [order[start : start + step] for start in range(0, len(order), step)]

    def _round(self, method: str | None = None, requests: list[Any] | None = None) -> Any:
        """Does one broadcast list; gives (position, completion or score) pairs, or None when rank 0 has closed.

        Rank 0 says which method of the engine and what requests; the others call it bare and are told.
        """
        from accelerate.utils import broadcast_object_list, gather_object

        work = broadcast_object_list([(method, requests or []) if method else None])[0]
        if work is None:
            return None
        method, shared = work
        ranks, rank = self.accelerator.num_processes, self.accelerator.process_index
        first, last = len(shared) * rank // ranks, len(shared) * (rank + 1) // ranks
        try:
            own: Any = [(first + index, done) for index, done in getattr(self.engine, method)(shared[first:last])]
        except Exception as error:  # noqa: BLE001 - told to every rank below, so that none waits for one that is gone
            own = [(None, f"rank {rank}: {type(error).__name__}: {error}")]
        found = gather_object(own)
        failed = [what for position, what in found if position is None]
        if failed:
            self._failed = True
            raise NextturnError(f"the probe failed; {failed[0]}")
        return found
