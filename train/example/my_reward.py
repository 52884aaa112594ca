"""A reward: right answers in few words. `nextturn grpo grpo.yaml` calls it for every completion."""


def short_and_right(prompts, completions, answer, **columns):
    """Return a number from 0 to 1 for each completion; `answer` is a column of prompts.jsonl."""
    said = [completion[0]["content"] for completion in completions]
    return [float(right.lower() in text.lower()) / (1 + len(text.split()) / 20) for text, right in zip(said, answer)]
