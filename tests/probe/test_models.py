"""A name becomes a folder that loads; what is no model says so in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from nextturn.probe import run
from nextturn.probe.command.errors import ModelError, TemplateError
from nextturn.probe.command.files import read_json
from nextturn.probe.command.sections import ProbeSection
from nextturn.probe.engines import open_engine
from nextturn.probe.models import folders as models
from nextturn.probe.models.checkpoints import mark_complete
from nextturn.probe.models.folders import ModelFolder, load_model, load_tokenizer, resolve
from nextturn.probe.text.chat import Chat
from support.model_parts import CHAT, change_json, copy_of, logits, lora_on
from support.tiny_models import build_tiny_llama


def test_a_local_folder_resolves_to_itself_and_loads_as_the_text_class(tiny_model: Path) -> None:
    folder = resolve(str(tiny_model))
    assert folder == ModelFolder(str(tiny_model), tiny_model, None)
    assert folder.tokenizer_path == tiny_model
    model = load_model(folder, device="cpu")
    assert type(model).__name__ == "Qwen3_5ForCausalLM"
    assert not model.training


def test_resolving_a_folder_imports_neither_torch_nor_transformers(tiny_model: Path) -> None:
    code = "import sys; from nextturn.probe.models.folders import resolve; resolve(sys.argv[1]); print({'torch', 'transformers'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code, str(tiny_model)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("engine", ["hf", "vllm"])
@pytest.mark.parametrize(
    ("stored", "dtype", "emulated", "used"),
    [
        ("bfloat16", "auto", True, "float32"),
        ("bfloat16", "bfloat16", True, "float32"),
        ("bfloat16", "auto", False, "bfloat16"),
        ("float32", "auto", True, "float32"),
        ("float32", "bfloat16", False, "bfloat16"),
        ("float16", "auto", True, "float16"),
    ],
)
def test_weights_are_loaded_in_the_dtype_that_is_recorded(
    engine: Any, stored: str, dtype: Any, emulated: bool, used: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`auto` is the checkpoint's own. Emulated, bfloat16 takes several times as long as float32."""
    monkeypatch.setattr(models, "emulates_bfloat16", lambda: emulated)
    monkeypatch.setattr(models, "own_device", lambda: "cpu")
    folder = resolve(str(build_tiny_llama(tmp_path / "model", dtype=stored)))
    probe = ProbeSection(sets={}, dtype=dtype, engine=engine)
    recorded: list[str] = []
    monkeypatch.setattr(run, "run_probe", lambda opened, *rest: recorded.append(rest[2].dtype) or {})
    run.measure_folder(folder, probe, [], tmp_path / "out")
    with closing(open_engine(folder, load_tokenizer(folder), probe)) as opened:
        loaded: Any = opened
        assert str(loaded.model.dtype if engine == "hf" else loaded.dtype).removeprefix("torch.") == used
    assert recorded == [used]


def test_the_tokenizer_pads_on_the_left_with_a_token_of_its_vocabulary(tiny_chatml: Path, tmp_path: Path) -> None:
    padless = copy_of(tiny_chatml, tmp_path / "padless")
    config = padless / "tokenizer_config.json"
    config.write_text(json.dumps({key: value for key, value in read_json(config).items() if key != "pad_token"}))
    tokenizer = load_tokenizer(resolve(str(padless)))
    assert tokenizer.pad_token == "<|endoftext|>"
    assert len(tokenizer) == len(load_tokenizer(resolve(str(tiny_chatml))))
    short, _ = tokenizer(["one", "one two three"], padding=True)["attention_mask"]
    assert (short[0], short[-1]) == (0, 1)


def test_the_default_chat_template_is_used(tiny_chatml: Path, tmp_path: Path) -> None:
    """A tokenizer without one is refused."""
    plain = load_tokenizer(resolve(str(tiny_chatml)))
    several, bare = (copy_of(tiny_chatml, tmp_path / name) for name in ("several", "bare"))
    shown = Chat(plain).prompt_text(CHAT[:1])
    plain.chat_template = {"default": plain.chat_template, "tool_use": "{{ tools }}"}
    plain.save_pretrained(several)
    assert Chat(load_tokenizer(resolve(str(several)))).prompt_text(CHAT[:1]) == shown
    (several / "chat_template.jinja").rename(several / "additional_chat_templates" / "rag.jinja")
    (bare / "chat_template.jinja").unlink()
    for folder in (several, bare):
        with pytest.raises(TemplateError, match="no chat template"):
            load_tokenizer(resolve(str(folder)))


def test_a_lora_folder_finds_its_base_and_is_merged(tiny_chatml: Path, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = copy_of(tiny_chatml, tmp_path / "base")
    assert resolve(str(lora_on(base, tmp_path / "absolute"))).base == base
    folder = resolve(str(lora_on(base, tmp_path / "adapter", "../base")))
    assert folder.base is not None and folder.base.resolve() == base
    assert folder.tokenizer_path == folder.base
    merged = load_model(folder, device="cpu")
    assert type(merged).__name__ == "LlamaForCausalLM"
    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "adapter").eval()
    assert (logits(merged) - logits(adapted)).abs().max() < 1e-5
    assert (logits(merged) - logits(load_model(resolve(str(base)), device="cpu"))).abs().max() > 1e-3


def test_weights_that_do_not_fit_are_refused(tiny_model: Path, tiny_chatml: Path, tmp_path: Path) -> None:
    """peft only warns where adapter weights find no place, and the merged model would be the base."""
    from safetensors.torch import load_file, save_file

    renamed = lora_on(tiny_chatml, tmp_path / "renamed")
    tensors = load_file(renamed / "adapter_model.safetensors")
    elsewhere = {name.replace("model.layers", "model.language_model.layers"): t for name, t in tensors.items()}
    save_file(elsewhere, renamed / "adapter_model.safetensors", metadata={"format": "pt"})
    other = lora_on(tiny_chatml, tmp_path / "other", str(tiny_model))
    changes = {"num_hidden_layers": 3, "intermediate_size": 256, "model_type": "llama_of_the_future"}
    copies = [copy_of(tiny_chatml, tmp_path / key) for key in changes]
    for folder, (key, value) in zip(copies, changes.items(), strict=True):
        change_json(folder / "config.json", **{key: value})
    for folder in (renamed, other, *copies):
        with pytest.raises(ModelError, match=rf"^{folder}: [^\n]*$"):
            load_model(resolve(str(folder)), device="cpu")


@pytest.mark.parametrize("base", ["/no/such/base", None, ".", "some-org/not-in-the-cache"])
def test_a_lora_folder_without_its_base_is_refused(tiny_chatml: Path, tmp_path: Path, base: str | None) -> None:
    """A lora folder without its base says where to name it."""
    adapter = lora_on(tiny_chatml, tmp_path / "adapter")
    change_json(adapter / "adapter_config.json", base_model_name_or_path=base)
    with pytest.raises(ModelError, match="set base_model_name_or_path in .*adapter_config.json") as raised:
        resolve(str(adapter))
    assert "\n" not in str(raised.value)


def test_what_is_no_model_is_refused_in_one_line(tiny_chatml: Path, tmp_path: Path) -> None:
    weightless, pickled = copy_of(tiny_chatml, tmp_path / "weightless"), tmp_path / "pickled"
    (weightless / "model.safetensors").unlink()
    (copy_of(weightless, pickled) / "pytorch_model.bin").touch()
    for name in ("empty", "run/checkpoint-20"):
        (tmp_path / name).mkdir(parents=True)
    wanted = {
        str(tmp_path / "missing"): "no such model folder",
        "just-a-word": "no such model folder",
        "some-org/not-in-the-cache": "hub cannot be reached.*local model folder",
        str(tmp_path / "empty"): "no model, expected config.json or adapter_config.json",
        str(tmp_path / "run"): "no model, .*; no complete checkpoint in it .checkpoint-20: no complete.json",
        str(tiny_chatml / "config.json"): "a file, expected a model folder",
        str(weightless): "no weights in this folder, expected model.safetensors",
        str(pickled): "pytorch_model.bin is not read",
    }
    for name, message in wanted.items():
        with pytest.raises(ModelError, match=rf"^[^\n]*{message}[^\n]*$") as raised:
            resolve(name)
        assert name in str(raised.value)


def test_a_training_run_stands_for_its_newest_complete_checkpoint(tiny_chatml: Path, tmp_path: Path) -> None:
    for step in (9, 10, 11):
        copy_of(tiny_chatml, tmp_path / f"run/checkpoint-{step}")
    for step in (9, 10):
        mark_complete(tmp_path / f"run/checkpoint-{step}", step)
    assert resolve(str(tmp_path / "run")).path == tmp_path / "run/checkpoint-10"


def test_a_missing_shard_is_named(tiny_model: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(tiny_model).save_pretrained(tmp_path / "sharded", max_shard_size="1MB")
    shards = sorted((tmp_path / "sharded").glob("model-*.safetensors"))
    assert len(shards) > 1 and resolve(str(tmp_path / "sharded")).path == tmp_path / "sharded"
    shards[-1].unlink()
    with pytest.raises(ModelError, match=f"1 of {len(shards)} weight files are missing, first {shards[-1].name}"):
        resolve(str(tmp_path / "sharded"))


def test_a_lost_connection_to_the_hub_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """huggingface_hub 1.x raises the errors of httpx, 2.x those of httpx2."""
    from huggingface_hub.utils import httpx

    def download(*args: Any, **options: Any) -> None:
        raise httpx.ConnectError("connection reset")

    monkeypatch.setattr("nextturn.probe.data.hub.unreachable", lambda: None)
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(ModelError, match=r"cannot be downloaded \(connection reset\)"):
        resolve("some-org/some-model")
