"""The phrasings: many of each act, none twice, questions only where something is asked, and no text ever changed."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import nextturn.data_builders
from nextturn.data_builders.recipe import wordings
from nextturn.data_builders.scripted import Act, acts, say
from nextturn.probe.recipe import _Loader

ACTS, SIMULATED = acts(), wordings("acts.yaml")["simulated_user"]


class UniqueKeys(_Loader):
    """A recipe's loader, with the aliases that packaged files use."""

    compose_node = yaml.SafeLoader.compose_node


def parts(act: Act) -> list[str]:
    return [*act.openers, *act.cores, *act.closers]


def slots(act: Act) -> dict[str, str]:
    return {name: f"<{name}>" for part in [*parts(act), act.plain] for name in re.findall(r"\{(\w+)\}", part)}


@pytest.mark.parametrize("name", ACTS)
def test_an_act_has_many_wordings_and_no_part_twice(name: str) -> None:
    act = ACTS[name]
    assert len(act.pairs) * len(act.closers) >= 6
    for same in (act.openers, act.cores, act.closers):
        assert len(set(same)) == len(same)
    used = Counter(say(name, random.Random(seed), slots(act)) for seed in range(2000))
    used.pop(act.plain.format_map(slots(act)).strip(), None)
    assert used.most_common(1)[0][1] < 10 + 2 * used.total() / (len(act.pairs) * len(act.closers))


@pytest.mark.parametrize("name", ACTS)
def test_every_wording_is_a_clean_line(name: str) -> None:
    act = ACTS[name]
    for opener, core in act.pairs:
        for closer in range(len(act.closers)):
            said = act.template(opener, core, closer).format_map(slots(act)).strip()
            assert (
                "  " not in said and "\n " not in said and not re.search(r"[{}]| [.,?!]|[.?!:] ?[.?!,]|,[.?!]", said)
            ), said
            assert not re.search(r"[.?!] [a-z]", said), f"a sentence that begins small: {said}"


@pytest.mark.parametrize("name", [name for name, act in ACTS.items() if act.speaker == "assistant"])
def test_the_assistant_asks_only_where_something_is_missing(name: str) -> None:
    act = ACTS[name]
    asks = name == "ask"
    for seed in range(200):
        said = say(name, random.Random(seed), {**slots(act), "ask": "Which?"})
        assert said.endswith("?") == asks, said
        assert asks or "?" not in said
        assert not re.search(r"\d", said), "a phrasing brings no number of its own"


TYPED = st.text(alphabet=r"\{}$%_^&x1I'. Don't it's", min_size=1, max_size=60)


@given(TYPED, st.sampled_from(sorted(ACTS)), st.integers(0, 10**6))
def test_what_fills_a_slot_is_never_changed(text: str, name: str, seed: int) -> None:
    """Also not where a user types in a hurry: capitals, apostrophes and dots of a formula stay."""
    act = ACTS[name]
    filled = {slot: f"[{text}]" for slot in slots(act)}
    said = say(name, random.Random(seed), filled, casual=True)
    marked = said.replace(f"[{text}]", "")
    assert "[" not in marked and "]" not in marked


def test_typing_in_a_hurry_is_seen() -> None:
    said = {say("why", random.Random(seed), slots(ACTS["why"]), casual=True) for seed in range(300)}
    assert not any(re.search(r"(?:^|[.?!] )[A-HJ-Z]", text) for text in said)
    assert any("i dont" in text for text in said) and any("I don't" in text for text in said)


@pytest.mark.parametrize("name", SIMULATED)
def test_the_simulated_user_has_many_wordings_with_the_same_slots(name: str) -> None:
    messages = SIMULATED[name]
    assert len(set(messages)) == len(messages) >= 6
    assert len({frozenset(re.findall(r"\{(\w+)\}", text)) for text in messages}) == 1


def test_the_files_are_as_their_heads_say() -> None:
    """No key twice, of which one would be lost, and no slot that nobody fills."""
    for name in ("acts.yaml", "starter.yaml", "words.yaml"):
        path = Path(nextturn.data_builders.__file__).with_name(name)
        assert yaml.load(path.read_text(), Loader=UniqueKeys) == wordings(name)
    known = set(wordings("acts.yaml")["slots"])
    said = [text for messages in SIMULATED.values() for text in messages]
    said += [part for act in ACTS.values() for part in [*parts(act), act.plain]]
    assert {slot for text in said for slot in re.findall(r"\{(\w+)\}", text)} <= known
