"""KL to the base: its figures against plain ones, as a term of the loss beside the data's, at checkpoints, and refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from probe import divergence
from probe.chat import Chat
from probe.divergence import adapter_off, answers_of, divergences, hidden_states, kl_figures, kl_per_token, loaded_base
from probe.engines.base import ScoreRequest
from probe.engines.hf import HfEngine
from probe.errors import CannotScore, run_command
from probe.files import read_jsonl, write_jsonl
from probe.models import load_model, load_tokenizer, resolve
from probe.tracking import flatten
from tests.launches import history
from tests.model_parts import LargestTensor, change_json, copy_of, lora_on
from tests.test_train_distributed import probed, take_back, write_data, write_recipe
from tests.tiny_models import thinking_tokenizer
from train.kl import answer_rows, rows_beside
from train.recipe import KlSection
from train.sft import main

KL = {"coefficient": 2.0, "share": 0.4, "problems": {"kind": "starter", "n": 6}, "max_answer_tokens": 8}


def moved_model(folder: Path) -> Any:
    """The model with an adapter that changes it."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "gate_proj"], init_lora_weights=False)
    return get_peft_model(load_model(resolve(str(folder)), "float32", "cpu"), config)


def plain_kl(base_logits: Any, logits: Any) -> Any:
    p, q = base_logits.double().softmax(dim=-1), logits.double().softmax(dim=-1)
    return (p * (p.log() - q.log())).sum(dim=-1)


def test_kl_and_its_gradient_are_those_of_whole_logits_and_reach_the_student_alone(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = moved_model(tiny_model)
    ids = torch.randint(0, 1000, (2, 13), generator=torch.Generator().manual_seed(0))
    mask, places = torch.ones_like(ids), torch.arange(4, 26)
    adapters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    with torch.no_grad(), model.disable_adapter():
        base_logits = model(input_ids=ids).logits
    expected = plain_kl(base_logits, model(input_ids=ids).logits).flatten()[places]
    expected.sum().backward()
    gradients = [parameter.grad.clone() for parameter in adapters]
    model.zero_grad()

    vocabulary = model.config.vocab_size
    monkeypatch.setattr(divergence, "CHUNK_BYTES", 4 * vocabulary * 5)  # five places at a time
    with torch.no_grad(), adapter_off(model)() as base:
        base_hidden = hidden_states(base, ids, mask, places)
    kl = kl_per_token(model, hidden_states(model, ids, mask, places), model, base_hidden)
    kl.sum().backward()
    assert expected.min() > 1e-5, "the adapter changes what the model says"
    assert torch.allclose(kl.double(), expected, rtol=1e-3, atol=1e-6)
    for parameter, wanted in zip(adapters, gradients, strict=True):
        assert torch.allclose(parameter.grad, wanted, rtol=1e-2, atol=1e-5)
    assert all(parameter.grad is None for parameter in model.parameters() if not parameter.requires_grad)

    # An engine says the same of the model as loaded, with its base beside it.
    requests = [ScoreRequest(tuple(row[:3]), tuple(row[3:])) for row in ids.tolist()]
    beside = loaded_base(lambda: load_model(resolve(str(tiny_model)), "float32", "cpu"))
    found = dict(HfEngine(model.eval(), None, base=beside).kl_to_base(requests))
    again = dict(divergences(model, adapter_off(model), requests))
    whole = plain_kl(base_logits, model(input_ids=ids).logits)[:, 2:].sum(dim=1)
    for index in range(2):
        assert found[index] == pytest.approx(again[index], rel=1e-4) == pytest.approx(whole[index].item(), rel=1e-3)
    figures = kl_figures(requests, [found[0], found[1]])
    assert figures["value"] == pytest.approx((found[0] + found[1]) / 22, abs=1e-6)
    assert (figures["answers"], figures["tokens"]) == (2, 22)
    assert figures["ci95"][0] <= figures["value"] <= figures["ci95"][1]


def test_no_logits_of_all_tokens_are_ever_held(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = moved_model(tiny_model)
    ids = torch.randint(0, 1000, (4, 64))
    places = torch.arange(4 * 64)
    hidden = hidden_states(model, ids, torch.ones_like(ids), places).detach().requires_grad_()
    monkeypatch.setattr(divergence, "CHUNK_BYTES", 8 * 4 * model.config.vocab_size)
    with LargestTensor(list(model.parameters())) as largest:
        kl_per_token(model, hidden, model, hidden.detach()).sum().backward()
    assert largest.bytes < 4 * 64 * model.config.vocab_size, (largest.bytes, largest.shape)


def test_what_an_engine_cannot_do_is_said(tiny_model: Path) -> None:
    model = load_model(resolve(str(tiny_model)), "float32", "cpu")
    with pytest.raises(CannotScore, match="no base model"):
        HfEngine(model, None).kl_to_base([])
    model.config.final_logit_softcapping = 30.0
    try:
        with pytest.raises(CannotScore, match="final_logit_softcapping"):
            HfEngine(model, None, base=loaded_base(lambda: model)).kl_to_base([])
    finally:
        del model.config.final_logit_softcapping


def test_the_answers_compared_are_the_base_s_own(tiny_chatml: Path, tmp_path: Path) -> None:
    chat = Chat(load_tokenizer(resolve(str(tiny_chatml))))
    assert answers_of(tmp_path, chat) == [], "no finished probe"

    def row(kind: str, name: str, question: str, answer: str, perturbation: str = "none") -> dict[str, Any]:
        said = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        return {"kind": kind, "set": name, "perturbation": perturbation, "messages": said}

    rows = [
        row("accuracy", "a", "What is 1 + 1?", "2"), row("followup", "a", "What is 1 + 1?", "2"),
        row("followup", "a", "What is 1 + 1?", "It", "truncate(0.5)"), row("clarify", "b", "How many?", ""),
        row("followup", "talks", "Hi.", "Somebody else's."), row("actual", "talks", "Hi.", "Somebody else's."),
    ]  # fmt: skip
    write_jsonl(tmp_path / "samples.jsonl", rows)
    (tmp_path / "results.json").write_text("{}")
    assert set(answers_of(tmp_path, chat)) == {
        ScoreRequest(chat.prompt_ids(rows[place]["messages"][:1]), chat.text_ids(text))
        for place, text in ((0, "2"), (3, ""))
    }


# --- As a term of the loss.


def trained(folder: Path, model: Path, kl: Any, capsys: Any, train: Any = None, **section: Any) -> list[dict[str, Any]]:
    """What each step of a run in `folder` logged."""
    folder.mkdir(exist_ok=True)
    recipe = write_recipe(
        folder, model, {"path": str(write_data(folder))}, train=train, probe={"when": "never"}, **section
    )
    options = ["--kl", json.dumps(kl)] if kl else []
    assert run_command(main, [str(recipe), *options]) == 0, capsys.readouterr().err
    return history(folder / "run" / "checkpoint-4")


@pytest.mark.parametrize("lora", [{"lora": {"r": 4, "alpha": 8}}, {}])
def test_the_term_starts_at_zero_and_keeps_the_model_near_its_base(
    lora: Any, tiny_model: Path, tmp_path: Path, capsys: Any
) -> None:
    """An adapter switched off, or a frozen copy: at the first step both are the model itself."""
    arms = {"free": KL | {"coefficient": 0.0}, "held": KL | {"coefficient": 1e5}} | ({"without": None} if lora else {})
    free, held, *without = (
        trained(tmp_path / name, tiny_model, kl, capsys, train={"learning_rate": 1e-2}, **lora)
        for name, kl in arms.items()
    )
    for rows in without:
        assert [row["loss"] for row in free] == [row["loss"] for row in rows], "with 0 it pulls at nothing"
        assert "kl" not in rows[0]
    assert free[0]["kl"] == held[0]["kl"] == pytest.approx(0, abs=1e-7)
    assert held[0]["loss"] == free[0]["loss"], "the logged loss is the data's alone"
    assert 0 < held[-1]["kl"] < 0.7 * free[-1]["kl"], (held, free)


def test_the_base_is_asked_once_and_a_resumed_run_takes_the_same_answers(
    tiny_model: Path, tmp_path: Path, capsys: Any
) -> None:
    lora = {"lora": {"r": 4, "alpha": 8}}
    whole = trained(tmp_path, tiny_model, KL, capsys, **lora)
    answers = tmp_path / "run" / "kl" / "answers.jsonl"
    said = [row["messages"] for _, row in read_jsonl(answers)]
    assert len(said) == 6 and [message["role"] for message in said[0]] == ["user", "assistant"]
    written = answers.stat().st_mtime_ns
    take_back(tmp_path / "run", 2)
    assert trained(tmp_path, tiny_model, KL, capsys, **lora) == whole
    assert answers.stat().st_mtime_ns == written


def test_answers_made_elsewhere_and_accumulation(tiny_chatml: Path, tmp_path: Path, capsys: Any) -> None:
    """The same rows in one part or in two, of equal lengths, are the same step."""
    said = [
        [{"role": "user", "content": f"{n} + 1?"}, {"role": "assistant", "content": f"It is {n + 1}."}] for n in (1, 2)
    ]
    write_jsonl(tmp_path / "answers.jsonl", [{"messages": messages} for messages in said])
    kl = {"coefficient": 3.0, "share": 0.5, "answers": str(tmp_path / "answers.jsonl")}
    once, twice = (
        trained(
            tmp_path / str(parts), tiny_chatml, kl, capsys,
            train={"per_device_train_batch_size": 4 // parts, "gradient_accumulation_steps": parts, "learning_rate": 1e-2},
        )
        for parts in (1, 2)
    )  # fmt: skip
    assert once[-1]["kl"] > 1e-3
    for one, other in zip(once, twice, strict=True):
        for name in ("loss", "kl", "grad_norm"):
            assert one[name] == pytest.approx(other[name], rel=1e-3, abs=1e-6), name


def test_an_answer_that_was_cut_while_it_thought_is_compared_like_the_others(tmp_path: Path) -> None:
    """The template has opened the block; nothing is learned from these rows but what the base said."""
    chat = Chat(thinking_tokenizer("qwen3_5_think"))
    said = ["Twice two.\n</think>\n\n4", "Twice two, and"]
    rows = [
        {"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": text}]} for text in said
    ]
    write_jsonl(tmp_path / "answers.jsonl", rows)
    section: Any = KlSection(answers=str(tmp_path / "answers.jsonl"))
    anything: Any = None
    args: Any = SimpleNamespace(max_length=200)
    assert len(answer_rows(section, anything, chat, args, tmp_path, "float32")) == 2


def test_the_share_is_held_on_average_and_every_answer_has_its_turn() -> None:
    from types import SimpleNamespace

    from train.kl import _Term
    from train.recipe import KlSection

    def rows_of(rank: int, ranks: int) -> list[list[int]]:
        trainer = SimpleNamespace(
            args=SimpleNamespace(per_device_train_batch_size=2, gradient_accumulation_steps=2, seed=1), model=None,
            state=SimpleNamespace(global_step=0), accelerator=SimpleNamespace(num_processes=ranks, process_index=rank),
        )  # fmt: skip
        term = _Term(trainer, KlSection(share=0.25, answers="a"), [{}] * 10, None)  # type: ignore[arg-type]
        found = []
        for trainer.state.global_step in range(15):
            found += [term._next(), term._next()]
        return found

    alone = rows_of(0, 1)
    assert rows_beside(2, 0.25) == pytest.approx(2 / 3)
    assert len(sum(alone, [])) == 20 and max(map(len, alone)) == 1, "20 answers beside 60 rows: a quarter of all"
    assert sorted(sum(alone, [])) == sorted([*range(10)] * 2)
    shared = [rows_of(rank, 2) for rank in (0, 1)]
    assert sorted(sum(shared[0], []) + sum(shared[1], [])) == sorted([*range(10)] * 4)


def test_checkpoints_are_measured_against_the_base(tiny_chatml: Path, tmp_path: Path, capsys: Any) -> None:
    """All weights are trained: the base is loaded beside the live model; a watcher finds the same, and vLLM would say no."""
    recipe = write_recipe(tmp_path, tiny_chatml, {"path": str(write_data(tmp_path))})
    assert run_command(main, [str(recipe)]) == 0
    probes = tmp_path / "run" / "probe"
    assert "kl_to_base" not in probed(probes / "base")
    first, last = (probed(probes / f"step-{step}") for step in (2, 4))
    assert 0 < first["kl_to_base"]["value"] < last["kl_to_base"]["value"]
    assert flatten(last)["probe/kl_to_base"] == last["kl_to_base"]["value"]
    assert flatten(last)["probe/kl_to_base_lo"] == last["kl_to_base"]["ci95"][0]
    card = (tmp_path / "run" / "README.md").read_text()
    assert "| KL to its base, nats a token |" in card and f"| {last['kl_to_base']['value']:.3f} [" in card

    from probe.__main__ import main as probe_main

    (probes / "step-4").rename(tmp_path / "inline")
    assert run_command(probe_main, ["watch", str(tmp_path / "run"), str(recipe), "--once", "--device", "cpu"]) == 0
    watched = probed(probes / "step-4")["kl_to_base"]
    assert watched["tokens"] == last["kl_to_base"]["tokens"]
    assert watched["value"] == pytest.approx(last["kl_to_base"]["value"], rel=1e-3)


def test_dft_trains_through_our_rows(tiny_chatml: Path, tmp_path: Path, capsys: Any) -> None:
    """trl's own loss, also on CPUs: each token's loss weighed by its probability."""
    (first, *_) = trained(tmp_path, tiny_chatml, None, capsys, train={"loss_type": "dft"})
    plain = math.log(load_model(resolve(str(tiny_chatml))).config.vocab_size)
    assert 0 < first["loss"] < 0.1 * plain


# --- What is refused, in one line.


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"coefficient": -1}, "kl.coefficient: given -1, wanted 0 or more"),
        ({"share": 1.0}, "kl.share: given 1, wanted more than 0 and less than 1"),
        ({"share": 0.0}, "kl.share: given 0, wanted more"),
        ({"problems": None}, "kl: wanted either `problems`"),
        ({"problems": {"kind": "starter"}}, "kl.problems.n: missing"),
        ({"problems": None, "answers": "nowhere.jsonl"}, "nowhere.jsonl: no such file"),
    ],
)
def test_bad_sections_are_refused(change: Any, said: str, tiny_chatml: Path, tmp_path: Path, capsys: Any) -> None:
    recipe = write_recipe(tmp_path, tiny_chatml, {"path": str(write_data(tmp_path))})
    assert run_command(main, [str(recipe), "--kl", json.dumps(KL | change)]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert not (tmp_path / "run" / "checkpoint-2").exists()


def test_a_base_that_cannot_be_one_is_refused(tiny_model: Path, tmp_path: Path, capsys: Any) -> None:
    quantised = copy_of(tiny_model, tmp_path / "quantised")
    change_json(quantised / "config.json", quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True})
    adapter = lora_on(tiny_model, tmp_path / "adapter")
    write_jsonl(tmp_path / "none.jsonl", [])
    for model, options, said in (
        (quantised, [], "is quantised"),
        (adapter, ["--model.lora.adapter", "continue"], "kl: not with `adapter: continue`"),
        (tiny_model, ["--kl.answers", str(tmp_path / "none.jsonl"), "--kl.problems", "null"], "no answers in"),
    ):
        recipe = write_recipe(tmp_path, model, {"path": str(write_data(tmp_path))}, probe={"when": "never"})
        capsys.readouterr()
        assert run_command(main, [str(recipe), "--kl", json.dumps(KL), *options]) == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1, error


def test_a_plan_counts_the_answers(tiny_chatml: Path, tmp_path: Path, capsys: Any) -> None:
    recipe = write_recipe(
        tmp_path, tiny_chatml, {"path": str(write_data(tmp_path))}, train={"gradient_accumulation_steps": 3}
    )
    assert run_command(main, [str(recipe), "--dry-run"]) == 0
    without = capsys.readouterr().out
    assert run_command(main, [str(recipe), "--dry-run", "--kl", json.dumps(KL)]) == 0
    plan = capsys.readouterr().out
    assert "kl        2 x KL(base || student) on 6 answers to starter problems" in plan and "a frozen copy" in plan
    assert "4 answers beside the 6 rows of a step (40% of all; 1.33 beside 2 on average)" in plan
    assert "reference" in plan and "reference" not in without
    assert run_command(main, [str(recipe), "--dry-run", "--kl", json.dumps(KL), "--model.lora.r", "4"]) == 0
    plan = capsys.readouterr().out
    assert "the adapter switched off" in plan and "reference" not in plan
    assert not (tmp_path / "run").exists()
