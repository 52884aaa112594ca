"""The user-turn probe as two tasks of lm-evaluation-harness (https://github.com/EleutherAI/lm-evaluation-harness).

    A='{"recipe": "recipes/probe.yaml", "set": "mt_bench"}'
    lm_eval --model hf --model_args pretrained=my_model --include_path probe/harness --metadata "$A" \
        --tasks nextturn_answers --log_samples --output_path out
    A='{"recipe": "recipes/probe.yaml", "set": "mt_bench", "answers": "out"}'
    lm_eval --model hf --model_args pretrained=my_model --include_path probe/harness --metadata "$A" \
        --tasks nextturn_user_turns --log_samples --output_path out

lm_eval makes all prompts before it generates, and the prompt of a user turn contains the model's answer. So the answers are
generated first, and the user turns by a second command. Prompts are text that `probe.chat` has rendered, so
`--apply_chat_template` must stay off. Every model type of lm_eval with `generate_until` on raw text works: hf, vllm,
local-completions. The tokenizer is that of `pretrained`, or of `tokenizer` in the metadata. Decoding is greedy.

`followup` and the share of every other label are reported. A turn that the judge leaves unscored counts in none of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from statistics import fmean
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

from nextturn.probe.engines.base import Completion
from nextturn.probe.errors import BadInput, DataError
from nextturn.probe.files import read_jsonl
from nextturn.probe.judges import get_judge
from nextturn.probe.judges.labels import GENUINE, LABELS, Case, judge_all
from nextturn.probe.measure.measures import answer_in, grade_answer
from nextturn.probe.measure.run import load_sets
from nextturn.probe.models import load_chat, tokenizer_folder
from nextturn.probe.settings import load_probe_recipe

ANSWERS = "nextturn_answers"


class _Prompted(ConfigurableTask):  # type: ignore[misc]
    """A task whose documents hold the whole text that the model continues, as `prompt`."""

    limit: str
    """The key of the recipe's `probe:` section that limits the tokens of a reply."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.metadata = config.get("metadata") or {}
        name = self.metadata.get("tokenizer") or self.metadata.get("pretrained")
        if name is None:
            raise BadInput("metadata: no `pretrained` among the model's arguments; name a folder or id as `tokenizer`")
        self.probe = load_probe_recipe(self.metadata.get("recipe", "recipes/probe.yaml")).probe
        sets = {loaded.name: loaded for loaded in load_sets(self.probe) if "followup" in loaded.measures}
        wanted = self.metadata.get("set") or (next(iter(sets)) if len(sets) == 1 else None)
        if wanted not in sets:
            raise BadInput(
                f"metadata: set: given {wanted!r}, expected a set with follow-up: {', '.join(sets) or 'none'}"
            )
        self.loaded = sets[wanted]
        self.chat = load_chat(tokenizer_folder(str(name)), self.probe.switches)
        self.max_tokens: int = getattr(self.probe, self.limit)
        stop_ids = self.chat.answer_stop_ids if self.limit == "max_answer_tokens" else self.chat.stop_ids
        stops = [self.chat.tokenizer.decode([token]) for token in stop_ids]
        settings = {
            "output_type": "generate_until",
            "test_split": "test",
            "doc_to_text": "prompt",
            "doc_to_target": "id",
            "generation_kwargs": {
                "until": stops, "max_gen_toks": self.max_tokens, "do_sample": False, "temperature": 0.0
            },
        }  # fmt: skip
        super().__init__(config={**{key: config[key] for key in ("task", "metadata")}, **settings})

    def documents(self) -> list[dict[str, Any]]:
        raise NotImplementedError

    def download(self, *arguments: Any, **options: Any) -> None:
        from datasets import Dataset

        self.dataset = {"test": Dataset.from_list(self.documents())}

    def construct_requests(self, doc: dict[str, Any], ctx: str, **options: Any) -> list[Instance]:
        if options.pop("apply_chat_template", False):
            raise BadInput("--apply_chat_template: the prompts are rendered already; leave it out")
        options.pop("chat_template", None)
        arguments = (doc["prompt"], deepcopy(self.config.generation_kwargs))
        return [Instance(request_type="generate_until", doc=doc, arguments=arguments, idx=0, **options)]

    def finish(self, text: str) -> Any:
        """Return "length" if a reply reached its limit. lm_eval does not report it, so its tokens are counted again."""
        return "length" if len(self.chat.text_ids(text)) >= self.max_tokens else "stop"

    def aggregation(self) -> dict[str, Callable[[list[float]], float]]:
        return dict.fromkeys(self.higher_is_better(), fmean)


class Answers(_Prompted):
    """The model's own answers, and how many are right."""

    limit = "max_answer_tokens"

    def documents(self) -> list[dict[str, Any]]:
        if self.loaded.transcript:
            raise BadInput(f"set {self.loaded.name}: transcripts have their answers; ask for nextturn_user_turns alone")
        if self.loaded.by_judge:
            raise BadInput(
                f"set {self.loaded.name}: `grader: judge` works in `nextturn probe run` only; give a function, or none"
            )
        return [
            {"id": item.id, "prompt": self.chat.prompt_text(item.messages), "messages": json.dumps(item.messages)}
            for item in self.loaded.items
        ]

    def process_results(self, doc: dict[str, Any], results: list[str]) -> dict[str, float]:
        item = next(item for item in self.loaded.items if item.id == doc["id"])
        if item.answer is None:
            return {"answered": float(bool(results[0].strip()))}
        reply = Completion(self.chat.whole_reply(results[0]), 0, self.finish(results[0]))
        graded = grade_answer(item, reply, self.loaded.grader)
        return {name: float(graded[name]) for name in ("strict", "lenient")}

    def higher_is_better(self) -> dict[str, bool]:
        return {"strict": True, "lenient": True, "answered": True}


class UserTurns(_Prompted):
    """The model's user turns after its answers, labelled by the recipe's judge."""

    limit = "max_user_tokens"

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.judge = get_judge(self.probe.judge, self.probe.judge_server)

    def documents(self) -> list[dict[str, Any]]:
        answers = {} if self.loaded.transcript else _answers(self.metadata.get("answers"))
        documents = []
        for item in self.loaded.items:
            if not self.loaded.transcript and answers.get(item.id, ("",))[0] != json.dumps(item.messages):
                raise DataError(
                    f"{self.metadata['answers']}: no answer to {item.id!r} of {self.loaded.name} as it is now; "
                    f"run {ANSWERS} with the same recipe first"
                )
            reply = item.reply or "" if self.loaded.transcript else self.chat.whole_reply(answers[item.id][1].strip())
            answer = answer_in(reply)
            messages = [*item.messages, {"role": "assistant", "content": answer or ""}]
            prompt = self.chat.user_prefix_text(messages, self.probe.prefix_form)
            document = {"id": item.id, "prompt": prompt, "messages": json.dumps(messages)}
            documents.append({**document, "answered": answer is not None})
        return documents

    def process_results(self, doc: dict[str, Any], results: list[str]) -> dict[str, float]:
        if not doc["answered"]:  # the reply only thinks, so there is nothing to react to
            return {"unscored": 1.0}
        turn = self.chat.user_turn(results[0])
        cut = self.finish(results[0]) == "length"
        (verdict,) = judge_all(self.judge, [Case(tuple(json.loads(doc["messages"])), turn, cut)])
        if verdict.label is None:
            return {"unscored": 1.0}
        shares = {label: float(verdict.label == label) for label in LABELS if label != GENUINE}
        return {"followup": float(verdict.label == GENUINE), **shares, "unscored": 0.0}

    def higher_is_better(self) -> dict[str, bool]:
        return {"followup": True, **{label: False for label in (*LABELS[1:], "unscored")}}


def _answers(given: str | None) -> dict[str, tuple[str, str]]:
    """Return (messages, answer) by id from a file of `--log_samples`, or from the newest such file below a folder."""
    if given is None:
        raise BadInput(f'metadata: no `answers`, expected the output folder of {ANSWERS}: {{"answers": "out"}}')
    files = [Path(given)]
    if files[0].is_dir():
        files = sorted(files[0].rglob(f"samples_{ANSWERS}_*.jsonl"), key=lambda file: file.stat().st_mtime)
    if not files:
        raise DataError(f"{given}: no samples_{ANSWERS}_*.jsonl below it; run {ANSWERS} with --log_samples first")
    rows = (row for _, row in read_jsonl(files[-1]))
    return {row["doc"]["id"]: (row["doc"]["messages"], row["resps"][0][0]) for row in rows}
