"""`conversation` mode, token by token: loss on exactly what the policy sampled, after exactly what it saw."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextturn.probe.command.errors import TemplateError
from nextturn.probe.data.messages import said_by
from nextturn.probe.text.chat import Chat
from support.conversations import spans
from support.rollout_parts import Calls, ToldUsers, chat_of, redrawn, rollout_of, trainer_of
from support.tiny_models import tiny_tokenizer

FAMILIES = ["chatml", "qwen3_5_nothink", "llama3", "gemma3"]
_CHATS: dict[str, Chat] = {}


def family(name: str) -> Chat:
    if name not in _CHATS:
        _CHATS[name] = Chat(tiny_tokenizer(name))
    return _CHATS[name]


TEXT = st.text(alphabet=st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=30)


@given(
    name=st.sampled_from(FAMILIES), texts=st.lists(TEXT, min_size=5, max_size=5), edge=st.sampled_from(["", "\n", " "])
)
def test_ids_grown_turn_by_turn_are_the_rendering_of_the_whole(name: str, texts: list[str], edge: str) -> None:
    chat = family(name)
    clean = [normalize("NFC", "x" + text.replace("<", "").strip()) for text in texts]  # as Qwen's tokenizer does itself
    clean[2] = edge + clean[2] + edge  # the simulator's text is rendered as the template has it
    talk = [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(clean)]
    grown = chat.prompt_ids(talk[:1])
    for turn in (1, 3):
        answer = chat.text_ids(talk[turn]["content"])
        grown = (*grown, *answer, *chat.turn_end_ids, *chat.continuation_ids(talk[: turn + 2]))
    if name == "qwen3_5_nothink":  # its history has no think block: the sequence is what was seen while answering
        seen, now = chat.tokenizer.decode(list(grown)), chat.prompt_text(talk)
        block = "<think>\n\n</think>\n\n"
        assert (seen.count(block), now.count(block)) == (3, 1)
        assert seen.replace(block, "") == now.replace(block, "")
    else:
        assert grown == chat.prompt_ids(talk)


def test_what_stands_between_two_turns_needs_both() -> None:
    chat = family("chatml")
    for talk in ([], [{"role": "user", "content": "Hi"}], [{"role": "assistant", "content": "Hi"}] * 2):
        with pytest.raises(TemplateError):
            chat.continuation_ids(talk)


USERS = ["Why?", "It is 3 bags.\nSorry.", "go on", "ok", "And then?"]


def course(number: int) -> list[str]:
    """A user for each conversation: some end early, one fails, one writes too much to go on."""
    return [["END"], ["Why?", "END"], ["Why?", "FAIL"], ["Why? " * 200], USERS, USERS, USERS, USERS][number % 8]


@pytest.fixture(scope="module", params=["tiny_chatml", "tiny_model"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One training step of trl: what the rollout gave, what trl made of it, and every call of the policy."""
    folder = request.getfixturevalue(request.param)
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield one_step(folder, tmp_path_factory.mktemp("run"), monkeypatch)


def one_step(folder: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    chat, calls = chat_of(folder), Calls(monkeypatch)
    rollout = rollout_of(chat, ToldUsers(course), mode="conversation", max_turns=3, max_turn_tokens=16)
    seen: dict[str, Any] = {}

    def remembered(prompts: Any, trainer: Any) -> Any:
        seen["given"] = rollout(prompts, trainer)
        trainer.model.eval()
        seen["redrawn"] = [[redrawn(trainer.model, *one) for one in call] for call in calls.made]
        trainer.model.train()
        return {name: list(values) if values else values for name, values in seen["given"].items()}

    sizes = {"max_completion_length": 160, "per_device_train_batch_size": 16, "num_generations": 8}
    trainer = trainer_of(folder, remembered, out, stops_early=5.5, **sizes)
    score = trainer._generate_and_score_completions
    monkeypatch.setattr(
        trainer, "_generate_and_score_completions", lambda inputs: seen.setdefault("trl", score(inputs))
    )
    trainer.train()
    seen["made"] = calls.made
    return chat, seen


def test_every_sampled_token_is_drawn_from_what_training_computes_there(run: Any) -> None:
    """Cache, padding, batches and templates aside: one forward pass over the trained sequence gives the same draws."""
    _, seen = run
    assert [[made.ids for _, made in call] for call in seen["made"]] == seen["redrawn"]


def rollouts(run: Any) -> Iterator[Any]:
    given = run[1]["given"]
    yield from zip(*(given[key] for key in ("prompt_ids", "completion_ids", "env_mask", "samples")), strict=True)


def test_exactly_the_policys_own_tokens_carry_loss(run: Any) -> None:
    _, seen = run
    said = {(request.prompt_ids, made.ids) for call in seen["made"] for request, made in call}
    own = [(prompt, ids, span) for prompt, ids, mask, _ in rollouts(run) for span in spans(mask)]
    found = {((*prompt, *ids[:start]), tuple(ids[start:end])) for prompt, ids, (start, end) in own}
    assert found == said, "every trained span is one sampled turn, after exactly the ids it was sampled from"
    assert len(own) > len(seen["given"]["prompt_ids"]), "some conversations went on"
    loss_mask = (seen["trl"]["completion_mask"] * seen["trl"]["tool_mask"]).tolist()
    for (_, ids, mask, _), row in zip(rollouts(run), loss_mask, strict=True):
        assert row == mask + [0] * (len(row) - len(ids)), "trl's mask is ours"


def test_what_is_trained_reads_as_the_assistants_turns_and_keeps_to_the_limits(run: Any) -> None:
    chat, endings = run[0], set()
    turn_end = chat.turn_end_ids[-1]
    for prompt, ids, mask, sample in rollouts(run):
        turns = list(spans(mask))
        assert tuple(prompt) == chat.prompt_ids(sample.row.prompt), "as at inference"
        assert len(ids) <= 160 and mask[0] == mask[-1] == 1, "it begins and ends with the policy"
        assert all(end - start <= 16 for start, end in turns)
        assert all(ids[end - 1] == turn_end for _, end in turns[:-1]), "a cut turn ends its conversation"
        assert sample.truncated == (ids[-1] != turn_end), "trl reads truncation from the last id"
        endings.update(sample.ended)
        if not sample.conversations:
            assert sample.failures == ("simulator_timeout",)
            continue
        (messages,) = sample.conversations
        texts = [chat.tokenizer.decode(ids[start:end]).removesuffix("<|im_end|>").strip() for start, end in turns]
        outside = chat.tokenizer.decode([token for token, own in zip(ids, mask, strict=True) if not own])
        users = said_by(messages[sample.start :], "user")
        assert texts == said_by(messages[sample.start :], "assistant")
        assert all(text in outside for text in users) and outside.count("<|im_start|>assistant") == len(users)
        assert sample.tokens == sample.simulated_tokens[0] == sum(mask)
    assert endings == {"user", "limit", "truncated"}
