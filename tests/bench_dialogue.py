"""`make bench`: how fast conversations of models are made, beside the peer package `collabllm` 0.0.8.

    python -m tests.bench_dialogue [--problems N] [--concurrency C] [--peer/--no-peer] [--peer-workers 1 8]

One server process plays all roles for both, and takes 300 ms for each reply; calls are counted there. Both get the
same candidates, exchanges looked ahead, samples, and one judgement for each look-ahead. Ours is self-play, which also
solves each problem and proves what is withheld, so the replies are compared too, call for call.

The peer is driven through its own functions (arXiv 2502.00640): `generate_multiturn_dataset` once for each problem.
`--peer-workers` says how many problems it has under way in threads: the package has no loop over problems (1), the
script in its repository takes 8. Its rate does not hang on how many problems there are once its threads are full, so
it gets two for each, or `--peer-problems`.

What is worth knowing of both: conversations a minute, and of ours the share of the bound, calls times latency over
requests at once. Each side runs in turn, three times; shown are the median, the lowest and the highest. Loading either
program does not count. The peer lives in an environment of its own, in the cache, which is made when it is first needed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))

from dialogue_server import problem_names, problems, speak  # noqa: E402 - as the tests import it
from loopback import Faults, Loopback, Seen, chat_reply  # noqa: E402

LATENCY_S, ROUNDS, ANSWER = 0.3, 3, 42
_MOST = 676
TURNS, CANDIDATES, WINDOW, SAMPLES = 3, 2, 2, 3
PEER, LITELLM = "collabllm==0.0.8", "litellm==1.106.2"
WORDS = """
    barn basket bench bottle box bridge cabin candle cart cellar chest corner crate drawer farm field gate harbor hill
    kitchen ladder lane market meadow mill orchard oven pantry path pond porch shed shelf stable tower valley wagon well
""".split()  # noqa: SIM905 - far easier to read than a list
HABITS = "quiet early busy muddy narrow sunny windy crowded tidy cheap heavy spare empty broken painted wooden".split()  # noqa: SIM905


@dataclass(frozen=True)
class Timed:
    """One run of one side: what it made and what that took."""

    conversations: int
    replies: int
    """What the conversations are made of; of the peer the calls, since it does not count."""
    seconds: float
    calls: int
    most_under_way: int

    @property
    def per_minute(self) -> float:
        return 60 * self.conversations / self.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=128)
    parser.add_argument(
        "--concurrency", type=int, default=128, help="requests of ours under way at once, over all roles"
    )
    parser.add_argument("--peer", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--peer-workers", type=int, nargs="+", default=[1, 8], help="problems of the peer at once")
    parser.add_argument("--peer-problems", type=int, help="left out: two for each of its workers")
    arguments = parser.parse_args()
    names = {"ours": 0} | ({f"{PEER}, {n} at once": n for n in arguments.peer_workers} if arguments.peer else {})
    python = _peer_environment() if arguments.peer else Path()
    seen: dict[str, list[Timed]] = {name: [] for name in names}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.bench_dialogue", "serve"],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        for _ in range(ROUNDS):
            for name, workers in names.items():
                _counts(url)
                problems = arguments.peer_problems or 2 * workers
                made, replies, seconds = _peer(python, url, workers, problems) if workers else _ours(url, arguments)
                calls, most = _counts(url)
                seen[name].append(Timed(made, replies or calls, seconds, calls, most))
        server.terminate()
    _show(seen, arguments.concurrency)


def _show(seen: dict[str, list[Timed]], concurrency: int) -> None:
    print(
        f"{TURNS} assistant turns, {CANDIDATES} candidates, each looked ahead {WINDOW} exchanges {SAMPLES} times; "
        f"{LATENCY_S * 1000:.0f} ms a reply; each side {ROUNDS} times in turn"
    )
    for name, runs in seen.items():
        print(
            f"{name}: {_span([run.per_minute for run in runs])} conversations a minute, "
            f"{runs[-1].conversations} conversations, {_span([run.calls / run.conversations for run in runs])} calls each, "
            f"{_span([run.calls / run.seconds for run in runs])} calls a second, "
            f"at most {max(run.most_under_way for run in runs)} under way"
        )
    ours = seen.pop("ours")
    bounds = [run.replies * LATENCY_S / concurrency for run in ours]
    shares = [100 * bound / run.seconds for bound, run in zip(bounds, ours, strict=True)]
    print(
        f"bound of ours: {ours[-1].replies} replies x {LATENCY_S} s / {concurrency} at once = {bounds[-1]:.1f} s; "
        f"took {_span([run.seconds for run in ours])} s, {_span(shares)} % of the bound"
    )
    for name, runs in seen.items():
        ratios = [mine.per_minute / other.per_minute for mine, other in zip(ours, runs, strict=True)]
        calls = [
            mine.replies / mine.seconds * other.seconds / other.calls for mine, other in zip(ours, runs, strict=True)
        ]
        print(
            f"ours against {name}: {_span(ratios)} times as many conversations a minute, "
            f"{_span(calls)} times as many replies"
        )


def _span(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


# ---------------------------------------------------------------- problems and the server


def question(number: int) -> str:
    """A problem whose answer is ANSWER, in words that few others have."""
    rng = random.Random(f"question {number}")
    first, second = rng.sample(WORDS, 2)
    a = rng.randint(5, ANSWER - 5)
    return (
        f"The {rng.choice(HABITS)} {first} holds {a} {rng.choice(HABITS)} jars and the {second} beside the "
        f"{rng.choice(WORDS)} holds {ANSWER - a}. How many jars are there in all?"
    )


def serve() -> None:
    """The server's process; ends with its standard input."""

    def counts(seen: Seen) -> dict[str, Any]:
        told = {
            "calls": Counter(one.body["model"] for one in server.requests if one.body),
            "most": server.most_under_way,
        }
        server.requests.clear()
        server.replies.clear()
        server.most_under_way = 0
        return told

    with Loopback({"/chat/completions": _reply, "/counts": counts}, Faults(latency_s=LATENCY_S)) as server:
        print(server.url, flush=True)
        sys.stdin.read()


def _counts(url: str) -> tuple[int, int]:
    """(calls, most requests under way) since this was last asked; the peer's warming up apart."""
    with urllib.request.urlopen(f"{url}/counts") as reply:
        told = json.load(reply)
    return sum(calls for model, calls in told["calls"].items() if model != "warmup"), told["most"]


_SELF_PLAY = speak({name: "" for name in problem_names(_MOST)})


def _reply(seen: Seen) -> Any:
    """A reply in the role that the model's name says, in the form that the prompt asks for."""
    messages, model = seen.body["messages"], seen.body["model"]
    if model == "self":
        return _SELF_PLAY(seen)
    text = messages[-1]["content"]
    rng = random.Random(json.dumps(seen.body, sort_keys=True))
    as_json = '"response" (str)' in text
    if model == "judge":
        return chat_reply(f"It works with the user.\nVERDICT: {rng.choice((3, 4, 5))}")
    if model == "simulator":
        said = _user_turn(rng, text, text.count("**Assistant**") + text.count("\n<assistant>\n"))
        return chat_reply(_json("current_answer", said) if as_json else f"<message>{said}</message>")
    turn = text.count("**User**") if as_json else sum(message["role"] == "user" for message in messages)
    said = _assistant_turn(rng, turn)
    return chat_reply(_json("current_problem", said) if as_json else said)


def _user_turn(rng: random.Random, prompt: str, turn: int) -> str:
    place = f"the {rng.choice(HABITS)} {rng.choice(WORDS)} and that {rng.choice(HABITS)} {rng.choice(WORDS)}"
    if not turn:
        return f"hi, i need a total for {place}, can you do that with me"
    if turn == 1:
        held = [word for word in prompt.partition("How many jars")[0].replace(".", " ").split() if word.isdecimal()]
        return f"ah right, it is {' and '.join(held[-2:])} for {place}, what now"
    return f"why do we look at {place} before we add, i did not get that part"


def _assistant_turn(rng: random.Random, turn: int) -> str:
    place = f"the {rng.choice(HABITS)} {rng.choice(WORDS)} and the {rng.choice(HABITS)} {rng.choice(WORDS)}"
    if turn == 1:
        return f"Gladly, a total is a sum. How many jars are in {place}?"
    if turn < TURNS:
        return (
            f"Then we add what {place} hold, since no jar stands in both. Which of the two do you want to begin with?"
        )
    return f"No jar stands in both {place}, so nothing is counted twice and we add: \\boxed{{{ANSWER}}}."


def _json(first: str, said: str) -> str:
    return json.dumps({first: "a total of jars", "thought": "They go step by step.", "response": said})


# ---------------------------------------------------------------- ours


def _ours(url: str, arguments: argparse.Namespace) -> tuple[int, int, float]:
    """(conversations, replies, seconds) of a whole build, from the recipe to the manifest."""
    from data_builders.build import build
    from data_builders.recipe import load_data_recipe
    from probe.files import read_json, write_json

    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        problems(folder / "problems.jsonl", arguments.problems)
        half = arguments.concurrency // 2  # roles at one address share what all of them may have under way
        server = {"urls": [url], "model": "self"}
        dialogue = {
            "policy": {"server": {**server, "concurrency": arguments.concurrency - half}},
            "judge": {"server": {**server, "concurrency": half}},
            "candidates": CANDIDATES, "window": WINDOW, "samples": SAMPLES,
        }  # fmt: skip
        recipe = {
            "source": {"kind": "gsm8k", "path": str(folder / "problems.jsonl")},
            "dialogue": dialogue,
            # What the server writes is made up of few words, which tell at once what is missing.
            "quality": {"max_same_wording": 1.0, "near_duplicates": None, "max_giveaway": 1.0},
            "output": {"path": str(folder / "out"), "shard_size": arguments.problems},
        }
        write_json(folder / "recipe.yaml", recipe)  # JSON is YAML
        started = time.perf_counter()
        build(load_data_recipe(folder / "recipe.yaml"))
        seconds = time.perf_counter() - started
        manifest = read_json(folder / "out" / "manifest.json")
    if manifest["rejected"]:
        print(f"rejected: {manifest['rejected']} of {manifest['asked']}", flush=True)
    return manifest["asked"], sum(n for name, n in manifest["calls"].items() if name.endswith(".calls")), seconds


# ---------------------------------------------------------------- the peer


def _peer_environment() -> Path:
    """The Python of an environment with the peer, which borrows torch and transformers from this one."""
    import sysconfig

    cache = Path(os.environ.get("NEXTTURN_CACHE") or "~/.cache/nextturn").expanduser()
    folder = cache / "peers" / f"{PEER}-{LITELLM}-{sys.version_info.major}.{sys.version_info.minor}"
    python, ready = folder / "bin" / "python", folder / "ready"
    here = sysconfig.get_paths()["purelib"]
    if ready.is_file() and ready.read_text() == here:
        return python
    print(f"making an environment for {PEER} in {folder}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    command = [str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]
    packages = Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
    (packages / "borrowed.pth").write_text(f"{here}\n")
    install = [str(python), "-m", "pip", "install", "-qq", "--no-warn-conflicts", "--disable-pip-version-check"]
    for wanted in (["--no-deps", PEER], [LITELLM]):
        if subprocess.run([*install, *wanted]).returncode:
            raise SystemExit(f"{wanted[-1]} cannot be installed here (see above); --no-peer measures ours alone")
    ready.write_text(here)
    return python


def _peer(python: Path, url: str, workers: int, problems: int) -> tuple[int, int, float]:
    """(conversations, 0, seconds), measured in the peer's own process."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ, "ENABLE_COLLABLLM_LOGGING": "0", "RUN_USER_DIR": folder, "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }  # fmt: skip
        done = subprocess.run(
            [python, "-m", "tests.bench_dialogue", "peer", url, str(workers), str(problems)],
            check=True, env=environment, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
    told = json.loads(done.stdout.splitlines()[-1])
    return told["conversations"], 0, told["seconds"]


def run_peer(url: str, workers: int, problems: int) -> None:
    """In the peer's environment. Each look-ahead is judged once, and its accuracy and length by rule, as ours."""
    import setuptools  # noqa: F401 - brings back distutils, which the peer imports, on Python 3.12 and newer

    # isort: split
    import litellm
    from collabllm.metric import BaseMetric, SingleTurnOrChatMetric
    from collabllm.synthetic import generate_multiturn_dataset

    @SingleTurnOrChatMetric.register_metric("worth")
    class Worth(BaseMetric):  # type: ignore[misc]
        def __init__(self, **settings: Any) -> None:
            self.settings = settings

        def score(self, prompt: str, groundtruth: str, completion: Any, messages: Any, metadata: Any) -> float:
            chat = "\n".join(f"{message['role']}: {message['content']}" for message in messages)
            asked = [{"role": "user", "content": f"From 1 to 5, how well do they work together?\n{chat}"}]
            reply = litellm.completion(**self.settings, messages=asked)
            right = f"boxed{{{groundtruth}}}" in messages[-1]["content"]
            return right + float(reply.choices[0].message.content[-1]) / 5 - len(chat.split()) / 1000

    def server(model: str) -> dict[str, Any]:
        return {"model": f"openai/{model}", "api_base": url, "api_key": "none"}

    def conversation(number: int) -> dict[str, Any]:
        """All other settings are the defaults of the build script in the peer's repository."""
        made: dict[str, Any] = generate_multiturn_dataset(
            task_desc="solving a math problem",
            single_turn_prompt=question(number),
            single_turn_completion=str(ANSWER),
            single_turn_metadata={},
            metric_names=["worth"],
            assistant_generation_kwargs=server("assistant"),
            user_generation_kwargs=server("simulator"),
            reward_generation_kwargs=server("judge"),
            num_candidate_responses=CANDIDATES,
            max_total_turns=2 * TURNS,  # messages
            max_new_turns=2 * WINDOW,
            num_samples=SAMPLES,
            max_workers=min(SAMPLES, 4),
            max_metric_workers=16,
            add_system_prompt_ratio=0,
        )
        return made

    litellm.completion(**server("warmup"), messages=[{"role": "user", "content": "hi"}])
    started = time.perf_counter()
    with ThreadPoolExecutor(workers) as pool:
        made = list(pool.map(conversation, range(problems)))
    seconds = time.perf_counter() - started
    whole = sum(len(one["turns"]) == TURNS for one in made)
    assert whole == problems, f"{whole} of {problems} conversations have {TURNS} turns"
    print(json.dumps({"conversations": whole, "seconds": seconds}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve()
    elif sys.argv[1:2] == ["peer"]:
        run_peer(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
