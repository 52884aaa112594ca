"""The user-turn probe as a task of inspect_ai (https://inspect.aisi.org.uk).

    inspect eval probe/harness/inspect_task.py --model nextturn/smollm2-135m -T recipe=recipes/probe.yaml -T set=mt_bench

An API for chats always answers as the assistant, so no provider of inspect_ai can open a user turn. The provider
`nextturn` of this file can: it serves any model that the probe serves (a folder, a checkpoint, a hub id, or
http://HOST:PORT/v1 with raw completions), by the engine that the recipe names. Messages that end with the user are
answered; messages that end with the assistant are continued by the *user*.

A sample's score holds, per temperature, the share of its judged user turns that are genuine follow-ups (NaN where none
could be judged), and, where the set has answers, whether the answer is right. Labels and turns are in its metadata.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageUser,
    GenerateConfig,
    Model,
    ModelAPI,
    ModelOutput,
    get_model,
    modelapi,
)
from inspect_ai.scorer import Metric, SampleScore, Score, Scorer, Target, metric, scorer
from inspect_ai.solver import Generate, Solver, TaskState, solver

from nextturn.probe.chat import Chat
from nextturn.probe.engines import open_engine
from nextturn.probe.engines.base import Completion, Engine, Request, collect, item_seed
from nextturn.probe.errors import BadInput
from nextturn.probe.harness import followup_set
from nextturn.probe.judges import get_judge
from nextturn.probe.judges.labels import GENUINE, Case, judge_all
from nextturn.probe.measure.measures import answer_in, grade_answer
from nextturn.probe.measure.run import LoadedSet, open_model
from nextturn.probe.models import load_tokenizer
from nextturn.probe.settings import ProbeSection, load_probe_recipe

_MESSAGE = {"system": ChatMessageSystem, "user": ChatMessageUser, "assistant": ChatMessageAssistant}


@modelapi(name="nextturn")
class NextTurn(ModelAPI):
    """A model that speaks next, whosever turn it is. `open` loads it, with the settings of a recipe."""

    opens_user_turns = True

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig | None = None,
        **model_args: Any,
    ) -> None:
        super().__init__(model_name, base_url, api_key, [], config or GenerateConfig())
        if model_args:
            raise BadInput(f"-M {', '.join(model_args)}: the model takes its settings from the recipe (-T recipe=FILE)")
        self.started_in = Path.cwd()  # inspect_ai goes to a task's own folder, and paths are the user's
        self._opened: tuple[ProbeSection, Chat, Engine] | None = None
        self._waiting: list[tuple[Request, asyncio.Future[Completion]]] = []
        self._working: asyncio.Task[None] | None = None

    def open(self, probe: ProbeSection) -> None:
        """Makes the model ready to speak under these settings, unless it is already."""
        if self._opened is not None and self._opened[0] == probe:
            return
        asked = probe
        with contextlib.chdir(self.started_in):
            folder, probe = open_model(self.model_name, probe)
        tokenizer = load_tokenizer(folder)
        self.close()
        self._opened = (asked, Chat(tokenizer, probe.enable_thinking), open_engine(folder, tokenizer, probe))

    async def generate(
        self, input: list[ChatMessage], tools: list[Any], tool_choice: Any, config: GenerateConfig
    ) -> ModelOutput:
        """The next turn after `input`: the assistant's after a user message, the user's after one of the assistant."""
        if self._opened is None:
            raise BadInput("the provider nextturn serves the task in probe/harness/inspect_task.py only")
        probe, chat, _ = self._opened
        messages = [{"role": str(message.role), "content": message.text} for message in input]
        of_user = messages[-1]["role"] == "assistant"
        prompt = chat.user_prefix_ids(messages, probe.prefix_form) if of_user else chat.prompt_ids(messages)
        limit = config.max_tokens or (probe.max_user_tokens if of_user else probe.max_answer_tokens)
        request = Request(prompt, limit, chat.stop_ids, config.temperature or 0.0, config.seed or 0)
        done = await self._complete(request)
        text = chat.user_turn(done.text) if of_user else chat.whole_reply(done.text.strip())
        output = ModelOutput.from_content(self.model_name, text)
        output.choices[0].stop_reason = "max_tokens" if done.finish == "length" else "stop"
        return output

    def max_connections(self) -> int:
        """How many samples are under way: what comes while the engine works is made together after it."""
        return 64

    def close(self) -> None:
        if self._opened is not None:
            self._opened[2].close()

    async def _complete(self, request: Request) -> Completion:
        coming: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, coming))
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())
        return await coming

    async def _work(self) -> None:
        assert self._opened is not None
        while self._waiting:
            await asyncio.sleep(0.05)  # samples that start together are to be in one batch
            batch, self._waiting = self._waiting, []
            try:
                made = await asyncio.to_thread(collect, self._opened[2], [request for request, _ in batch])
            except Exception as error:  # noqa: BLE001 - whatever it is, it is raised where the sample waits
                for _, coming in batch:
                    if not coming.done():
                        coming.set_exception(error)
            else:
                for (_, coming), completion in zip(batch, made, strict=True):
                    if not coming.done():  # inspect_ai cancels a sample at its time limit; the others still wait
                        coming.set_result(completion)


@task
def user_turn(recipe: str = "recipes/probe.yaml", set: str | None = None) -> Task:  # noqa: A002 - its name in the recipe
    """The probe on one set of a recipe.

    Args:
        recipe: as of `nextturn probe run`; of its perturbations none is applied.
        set: which of the recipe's sets; may be left out where there is only one with follow-up.
    """
    with contextlib.chdir(_nextturn(get_model()).started_in):
        probe = load_probe_recipe(recipe).probe
        loaded = followup_set(probe, set)
    samples = [
        Sample(
            input=[_MESSAGE[message["role"]](content=message["content"]) for message in item.messages],
            target=item.answer or "",
            id=item.id,
            metadata={"set": loaded.name},
        )
        for item in loaded.items
    ]
    return Task(dataset=samples, solver=answer_then_speak_as_the_user(probe, loaded), scorer=genuine(probe, loaded))


@solver
def answer_then_speak_as_the_user(probe: ProbeSection, loaded: LoadedSet) -> Solver:
    """The model's greedy answer, then its user turn at every temperature of the recipe, as `nextturn probe run` asks."""
    items = {item.id: item for item in loaded.items}

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        model = get_model()
        _nextturn(model).open(probe)
        item = items[str(state.sample_id)]
        if loaded.transcript:
            answer = answer_in(item.reply or "")
        else:
            settings = GenerateConfig(temperature=0.0, max_tokens=probe.max_answer_tokens)
            state.output = await model.generate(state.messages, config=settings)
            answer = answer_in(state.output.completion)
        state.messages.append(ChatMessageAssistant(content=answer or ""))

        async def turn(temperature: float, sample: int) -> dict[str, Any]:
            seed = item_seed(probe.seed, loaded.name, item.id, temperature, sample)
            settings = GenerateConfig(temperature=temperature, max_tokens=probe.max_user_tokens, seed=seed)
            said = await model.generate(list(state.messages), config=settings)
            cut = said.stop_reason == "max_tokens"
            return {"temperature": temperature, "sample": sample, "user_turn": said.completion, "user_cut": cut}

        # After a reply that only thinks there is nothing to react to.
        temperatures = probe.temperatures if answer is not None else ()
        places = [(t, sample) for t in temperatures for sample in range(probe.samples if t > 0 else 1)]
        state.metadata["turns"] = await asyncio.gather(*(turn(*place) for place in places))
        return state

    return solve


def _nextturn(model: Model) -> Any:
    """The provider behind a model. Raises BadInput where it cannot speak as the user."""
    # No isinstance: inspect_ai has loaded this file once to find the provider and once more to find the task.
    if not getattr(model.api, "opens_user_turns", False):
        raise BadInput(f"--model {model}: an API for chats cannot open a user turn, wanted nextturn/MODEL")
    return model.api


@metric
def mean_of_judged() -> Metric:
    """The mean over the samples that have a value; NaN where none has."""

    def mean(scores: list[SampleScore]) -> float:
        values = [value for score in scores if not math.isnan(value := score.score.as_float())]
        return sum(values) / len(values) if values else math.nan

    return mean


@scorer(metrics={"*": [mean_of_judged()]})
def genuine(probe: ProbeSection, loaded: LoadedSet) -> Scorer:
    """Judges each user turn by the recipe's judge, and grades the answer where the set has one."""
    judge = get_judge(probe.judge, probe.judge_server)
    items = {item.id: item for item in loaded.items}

    async def score(state: TaskState, target: Target) -> Score:
        messages = tuple({"role": str(message.role), "content": message.text} for message in state.messages)
        turns: Sequence[dict[str, Any]] = state.metadata["turns"]
        cases = [Case(messages, turn["user_turn"], turn["user_cut"]) for turn in turns]
        verdicts = await asyncio.to_thread(judge_all, judge, cases)
        value: dict[str, float] = {}
        for temperature in probe.temperatures:
            labels = [v.label for v, turn in zip(verdicts, turns, strict=True) if turn["temperature"] == temperature]
            judged = [label == GENUINE for label in labels if label is not None]
            value[f"T={temperature}"] = sum(judged) / len(judged) if judged else math.nan
        if "accuracy" in loaded.measures:
            cut = state.output.stop_reason == "max_tokens"
            reply = Completion(state.output.completion, 0, "length" if cut else "stop")
            graded = grade_answer(items[str(state.sample_id)], reply)
            value |= {name: float(graded[name]) for name in ("strict", "lenient")}
        labelled = [{**turn, **vars(verdict)} for turn, verdict in zip(turns, verdicts, strict=True)]
        answer = turns[0]["user_turn"] if turns else None
        return Score(value=value, answer=answer, metadata={"judge": judge.version, "turns": labelled})

    return score
