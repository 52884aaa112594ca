"""trl's DPOTrainer with the probe: python recipes/trainers/dpo.py [MODEL] [OUTPUT_DIR]"""

import sys

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer

from nextturn.probe import ProbeCallback

name, out = (*sys.argv[1:], *("HuggingFaceTB/SmolLM2-135M-Instruct", "runs/trainers_dpo")[len(sys.argv) - 1 :])
model, tokenizer = AutoModelForCausalLM.from_pretrained(name), AutoTokenizer.from_pretrained(name)
pairs = [{
    "prompt": [{"role": "user", "content": f"Ann has {n} pens and buys {n + 1}. How many?"}],
    "chosen": [{"role": "assistant", "content": f"{n} + {n + 1} = {2 * n + 1}."}],
    "rejected": [{"role": "assistant", "content": "How many pens has Ann?"}],
} for n in range(16)]  # fmt: skip

args = DPOConfig(
    out, max_steps=4, save_steps=2, logging_steps=1, per_device_train_batch_size=2, report_to="none", bf16=False
)
trainer = DPOTrainer(model, args=args, train_dataset=Dataset.from_list(pairs), processing_class=tokenizer)
trainer.add_callback(
    ProbeCallback(
        sets={"written_pairs": {"n": 4}, "talks": {"path": "recipes/transcripts.jsonl", "transcript": True}},
        trainer=trainer, temperatures=[0.0], max_answer_tokens=32, max_user_tokens=24,
    )
)  # fmt: skip
trainer.train()  # then: nextturn probe compare OUTPUT_DIR --out OUTPUT_DIR/comparison
