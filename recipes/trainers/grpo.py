"""trl's GRPOTrainer with the probe: python recipes/trainers/grpo.py [MODEL] [OUTPUT_DIR]"""

import sys

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from nextturn.probe import ProbeCallback

name, out = (*sys.argv[1:], *("HuggingFaceTB/SmolLM2-135M-Instruct", "runs/trainers_grpo")[len(sys.argv) - 1 :])
model, tokenizer = AutoModelForCausalLM.from_pretrained(name), AutoTokenizer.from_pretrained(name)
prompts = [
    {"prompt": [{"role": "user", "content": f"Ann has {n} pens and buys {n + 1}. How many?"}]} for n in range(16)
]


def short(completions: list, **_: object) -> list[float]:
    return [-float(len(completion[0]["content"])) for completion in completions]


args = GRPOConfig(out, max_steps=4, save_steps=2, logging_steps=1, per_device_train_batch_size=2,
                  num_generations=2, max_completion_length=16, report_to="none", bf16=False)  # fmt: skip
trainer = GRPOTrainer(model, short, args, train_dataset=Dataset.from_list(prompts), processing_class=tokenizer)
trainer.add_callback(
    ProbeCallback(
        sets={"written_pairs": {"n": 4}, "talks": {"path": "recipes/transcripts.jsonl", "transcript": True}},
        trainer=trainer, temperatures=[0.0], max_answer_tokens=32, max_user_tokens=24,
    )
)  # fmt: skip
trainer.train()  # then: nextturn probe compare OUTPUT_DIR --out OUTPUT_DIR/comparison
