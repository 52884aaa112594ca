"""Speed and peak memory of a training script's own run, beside what its dry run would have estimated."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from train.gpu_check import TERA, peak_tflops, training_flops

WARM_UP = 2  # steps that are not timed: kernels are chosen and compiled in them


class Clock(TrainerCallback):  # type: ignore[misc]
    """Notes the time and the tokens so far after every step."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, int]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()
        # SFT counts what goes in, padding included; GRPO prompts and completions.
        self.marks.append((time.monotonic(), int(state.num_input_tokens_seen or getattr(state, "num_tokens", 0))))

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.args, self.state, self.model = args, state, model

    def figures(self, rows: int, length: int, completion: int | None) -> dict[str, Any]:
        import torch

        from train.plan import GIB

        warm = min(WARM_UP, len(self.marks) - 2)
        (begun, before), (ended, after) = self.marks[warm], self.marks[-1]
        steps, seconds = len(self.marks) - 1 - warm, ended - begun
        losses = [row["loss"] for row in self.state.log_history if "loss" in row]
        speed = (after - before or steps * rows * length) / seconds
        model, on_gpu = self.model, torch.cuda.is_available()
        found: dict[str, Any] = {"loss": losses[-1] if losses else None, "seconds_a_step": round(seconds / steps, 3)}
        found |= {
            "tokens_per_second": round(speed),
            "estimated_gib": round(self._estimate(rows, length, completion) / GIB, 2),
        }
        if not on_gpu:
            return found
        found["peak_gib"] = round(torch.cuda.max_memory_allocated() / GIB, 2)
        if completion is None:
            parameters = sum(p.numel() for p in model.parameters())
            flops = speed * training_flops(model.config, parameters, length, lora=True)
            peak = peak_tflops(torch.cuda.get_device_name())
            found["model_tflops"] = round(flops / TERA, 1)
            found["share_of_peak"] = round(flops / TERA / peak, 3) if peak else "unknown chip"
        return found

    def _estimate(self, rows: int, length: int, completion: int | None) -> float:
        """What a dry run of the same recipe says."""
        from train.plan import memory_parts, size_of
        from train.recipe import LoraSection, ModelSection
        from train.step_memory import Step, step_memory

        args = self.args
        folder = Path(self.model.get_base_model().config._name_or_path)
        size = size_of(ModelSection(name=str(folder), lora=LoraSection()), folder)
        given = {"gradient_accumulation_steps": args.gradient_accumulation_steps, "bf16": args.bf16}
        given["gradient_checkpointing"] = args.gradient_checkpointing
        step = step_memory(size.make, Step(rows, length, completion, args.use_cpu, given))
        return sum(memory_parts(size, step, given, stage=0, ranks=1).values())
