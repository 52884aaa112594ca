"""A GGUF file becomes a folder that answers as the model it was made from, or is refused in one line."""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from model_parts import CHAT, change_json, copy_of, logits
from tiny_models import tiny_tokenizer

from probe import conversions
from probe import gguf as module
from probe.__main__ import main as probe
from probe.errors import ModelError, run_command
from probe.models import fingerprint, load_model, load_tokenizer, resolve, tokenizer_folder
from train.sft import main as sft

gguf = pytest.importorskip("gguf", reason="the package gguf is not installed: pip install gguf")

# transformers' model type: llama.cpp's name of the architecture, and of how the tokenizer cuts text.
NAMES = {"llama": ("llama", "smollm"), "qwen2": ("qwen2", "qwen2"), "qwen3": ("qwen3", "qwen2")}
NAMES |= {"qwen3_5_text": ("qwen35", "qwen35")}


@pytest.fixture(scope="module")
def tiny_qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_qwen(tmp_path_factory.mktemp("models") / "tiny-qwen2", "Qwen2", tie_word_embeddings=False)


@pytest.fixture(scope="module")
def tiny_qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_qwen(tmp_path_factory.mktemp("models") / "tiny-qwen3", "Qwen3", head_dim=128, tie_word_embeddings=True)


def tiny_qwen(folder: Path, family: str, **shape: Any) -> Path:
    """A tiny random Qwen2 or Qwen3 with Qwen2's own tokenizer class."""
    import torch
    import transformers

    ours = tiny_tokenizer("chatml")
    bpe = json.loads(ours.backend_tokenizer.to_str())["model"]
    special = {"unk_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    merges = [tuple(pair) for pair in bpe["merges"]]
    tokenizer = transformers.Qwen2Tokenizer(vocab=bpe["vocab"], merges=merges, **special)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    tokenizer.add_tokens(["<tool_call>"])
    tokenizer.chat_template = ours.chat_template
    config = getattr(transformers, f"{family}Config")(
        vocab_size=len(tokenizer) + 7,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        rms_norm_eps=1e-6,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **shape,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(transformers, f"{family}ForCausalLM")(config)
        for name, parameter in model.named_parameters():  # made as zeros and ones, which would hide that they are lost
            if name.endswith("bias") or "norm" in name:
                torch.nn.init.normal_(parameter)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_gguf(model: Path, path: Path, kind: str = "F32", **changed: Any) -> Path:
    """Writes a model folder as llama.cpp's converter does.

    Args:
        kind: ggml's type of the matrices.
        changed: metadata by their names in the file with "." as "__", None to leave one out; `tensors` is a function
            that changes the tensors.
    """
    from gguf.quants import quantize
    from transformers import AutoConfig, AutoTokenizer

    path.parent.mkdir(parents=True, exist_ok=True)
    config, tokenizer = AutoConfig.from_pretrained(model), AutoTokenizer.from_pretrained(model)
    arch, pre = NAMES[config.model_type]
    tensors = changed.pop("tensors", lambda tensors: tensors)(tensors_of(model, config, arch))
    values = metadata_of(config, arch) | vocabulary_of(tokenizer, config, pre)
    values |= {name.replace("__", "."): value for name, value in changed.items()}
    writer = gguf.GGUFWriter(path, values.get("general.architecture", arch))
    for name, value in values.items():
        if value is None or name == "general.architecture":
            continue
        add = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
        add.get(type(value), writer.add_array)(name, value)
    wanted = gguf.GGMLQuantizationType[kind]
    for name, tensor in tensors.items():
        kept = wanted if tensor.ndim > 1 and "conv1d" not in name else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, quantize(tensor, kept), raw_dtype=kept)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def metadata_of(config: Any, arch: str) -> dict[str, Any]:
    values = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": float(config.rope_parameters["rope_theta"]),
    }
    if arch == "llama":
        values |= {"vocab_size": config.vocab_size, "rope.dimension_count": config.head_dim}
    if arch == "qwen3":
        values |= {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim}
    if arch == "qwen35":
        linear = config.linear_num_value_heads * config.linear_value_head_dim
        values |= {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim}
        values |= {"ssm.conv_kernel": config.linear_conv_kernel_dim, "ssm.state_size": config.linear_key_head_dim}
        values |= {"ssm.group_count": config.linear_num_key_heads, "ssm.inner_size": linear}
        values |= {"ssm.time_step_rank": config.linear_num_value_heads, "full_attention_interval": 4}
        values |= {"rope.dimension_count": 16, "rope.dimension_sections": [4, 2, 2, 0]}
    return {f"{arch}.{name}": value for name, value in values.items()}


def vocabulary_of(tokenizer: Any, config: Any, pre: str) -> dict[str, Any]:
    added = tokenizer.added_tokens_decoder
    size = config.vocab_size
    tokens = [
        tokenizer.convert_ids_to_tokens(index) if index < len(tokenizer) else f"[PAD{index}]" for index in range(size)
    ]
    kinds = [
        5 if index >= len(tokenizer) else 1 if index not in added else 3 if added[index].special else 4
        for index in range(size)
    ]
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    values = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": kinds,
        "merges": [" ".join(pair) for pair in merges],
    }
    ids = {"bos": tokenizer.bos_token_id, "eos": tokenizer.eos_token_id, "padding": tokenizer.pad_token_id}
    values |= {f"{name}_token_id": index for name, index in ids.items()} | {"add_bos_token": False}
    return {f"tokenizer.ggml.{name}": value for name, value in values.items()} | {
        "tokenizer.chat_template": tokenizer.chat_template
    }


def tensors_of(model: Path, config: Any, arch: str) -> dict[str, Any]:
    """The weights under llama.cpp's names, with what its converter does to them."""
    import numpy as np
    from safetensors.numpy import load_file

    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    tensors = {}
    for name, tensor in load_file(model / "model.safetensors").items():
        name = name.replace("model.language_model.", "model.").replace("dt_bias", "dt_proj.bias")
        stem, _, end = name.rpartition(".") if name.endswith((".weight", ".bias")) else (name, "", "")
        tensor = tensor.astype(np.float32)
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(
            stem.rpartition(".")[2]
        )
        if arch == "llama" and heads:
            halves = tensor.reshape(heads, 2, len(tensor) // heads // 2, *tensor.shape[1:])
            tensor = halves.swapaxes(1, 2).reshape(tensor.shape)
        if arch == "qwen35":  # with one key head the order of the value heads is the same
            if "norm" in name and "linear_attn.norm" not in name:
                tensor = tensor + 1
            if name.endswith("A_log"):
                tensor = -np.exp(tensor)
            if "conv1d" in name:
                tensor = tensor.squeeze(1)
        found = names.get_name(stem)
        assert found is not None, name
        tensors[f"{found}.{end}" if end else found] = np.ascontiguousarray(tensor)
    return tensors


needs_517 = pytest.mark.skipif(
    [int(part) for part in version("transformers").split(".")[:2]] < [5, 17],
    reason="transformers before 5.17: no Qwen3.5",
)
QWEN35 = pytest.param("tiny_model", marks=needs_517)


@pytest.fixture
def model(request: pytest.FixtureRequest) -> Path:
    folder: Path = request.getfixturevalue(request.param)
    return folder


@pytest.mark.parametrize("model", ["tiny_chatml", "tiny_qwen2", "tiny_qwen3", QWEN35], indirect=True)
def test_a_gguf_file_becomes_the_model_that_it_was_made_from(model: Path, own_cache: Path, tmp_path: Path) -> None:
    from transformers import AutoConfig

    path = write_gguf(model, tmp_path / "files" / "tiny.gguf")
    folder = resolve(str(path))
    assert folder.path.parent == own_cache and folder.name == str(path)
    loaded, original = load_model(folder, device="cpu"), load_model(resolve(str(model)), device="cpu")
    assert type(loaded) is type(original) and (logits(loaded) - logits(original)).abs().max() < 1e-6
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    read, wanted = (AutoConfig.from_pretrained(place).to_dict() for place in (folder.path, model))
    shape = ("rms_norm_eps", "rope_parameters", "tie_word_embeddings", "max_position_embeddings", "eos_token_id")
    assert {key: read[key] for key in shape} == {key: wanted[key] for key in shape}

    ours, theirs = load_tokenizer(folder), load_tokenizer(resolve(str(model)))
    assert (ours.eos_token, ours.pad_token, len(ours)) == (theirs.eos_token, theirs.pad_token, len(theirs))
    assert loaded.generation_config.eos_token_id == ours.eos_token_id
    texts = [*module._TEXTS, theirs.apply_chat_template(CHAT, tokenize=False), "e\u0301t\u00e9 I'LL 12345"]
    assert [ours(text).input_ids for text in texts] == [theirs(text).input_ids for text in texts]
    assert ours.chat_template == theirs.chat_template and set(ours.all_special_ids) <= set(theirs.added_tokens_decoder)

    made = (folder.path / "model.safetensors").stat().st_mtime_ns
    again = resolve(str(path.parent))
    assert again.path == folder.path and tokenizer_folder(str(path.parent)).path == folder.path
    assert (folder.path / "model.safetensors").stat().st_mtime_ns == made
    elsewhere = resolve(str(shutil.copy(path, tmp_path / "copy.gguf")))
    assert elsewhere.path == folder.path and fingerprint(elsewhere) == fingerprint(folder)


@pytest.mark.parametrize("kind, dtype", [("F16", "float16"), ("BF16", "bfloat16"), ("Q8_0", "bfloat16")])
@pytest.mark.parametrize("model", ["tiny_qwen2", QWEN35], indirect=True)
def test_weights_keep_the_file_s_type_and_quantised_ones_become_bfloat16(
    model: Path, own_cache: Path, tmp_path: Path, kind: str, dtype: str
) -> None:
    import torch
    from gguf.quants import dequantize

    path = write_gguf(model, tmp_path / "tiny.gguf", kind)
    loaded = load_model(resolve(str(path)), device="cpu")
    assert str(loaded.dtype) == f"torch.{dtype}"
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}["blk.1.ffn_down.weight"]
    values = torch.from_numpy(dequantize(stored.data, stored.tensor_type).copy()).to(loaded.dtype)
    assert torch.equal(loaded.model.layers[1].mlp.down_proj.weight, values), "unpacked in float32 and rounded once"


def test_the_commands_take_a_gguf_file(tiny_chatml: Path, own_cache: Path, tmp_path: Path, capsys: Any) -> None:
    path = write_gguf(tiny_chatml, tmp_path / "tiny.gguf")
    (tmp_path / "questions.jsonl").write_text('{"question": "What is 2 + 3?", "answer": "5"}\n')
    (tmp_path / "rows.jsonl").write_text(json.dumps({"messages": CHAT[:2]}) + "\n")
    sets = f"probe: {{sets: {{own: {{path: {tmp_path}/questions.jsonl}}}}, max_answer_tokens: 8, max_user_tokens: 8}}\n"
    (tmp_path / "sft.yaml").write_text(
        f"model: {{name: {path.parent}, dtype: float32}}\ndata: {{path: {tmp_path}/rows.jsonl}}\n"
        f"train: {{output_dir: {tmp_path}/run, max_length: 128}}\n{sets}"
    )
    assert run_command(sft, [str(tmp_path / "sft.yaml"), "--dry-run"]) == 0
    plan = capsys.readouterr().out
    assert "1 conversations, 1 rows" in plan
    assert f"nothing was written but what a run needs as well, fetched or converted once: {own_cache}/gguf-" in plan
    (tmp_path / "probe.yaml").write_text(sets)
    command = ["run", str(path), str(tmp_path / "probe.yaml"), "--out", str(tmp_path / "out"), "--device", "cpu"]
    assert run_command(probe, command) == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["model"]["label"] == "tiny.gguf"
    assert results["model"]["weights_sha256"] == fingerprint(resolve(str(path)))


@needs_517
def test_layers_that_predict_further_tokens_are_left_aside(tiny_model: Path, own_cache: Path, tmp_path: Path) -> None:
    import numpy as np

    further = {"blk.4.nextn.eh_proj.weight": np.ones((64, 128), dtype=np.float32)}
    more = {"qwen35__block_count": 5, "qwen35__nextn_predict_layers": 1, "tensors": lambda tensors: tensors | further}
    loaded = load_model(resolve(str(write_gguf(tiny_model, tmp_path / "tiny.gguf", **more))), device="cpu")
    assert (logits(loaded) - logits(load_model(resolve(str(tiny_model)), device="cpu"))).abs().max() < 1e-6


def without(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda tensors: {key: tensor for key, tensor in tensors.items() if key != name}


def with_one_more(tensors: dict[str, Any]) -> dict[str, Any]:
    return tensors | {"blk.0.attn_q.bias": tensors["blk.0.attn_q.weight"][0]}


REFUSED = {
    "transformers .* cannot read its architecture, mistral9": {"general__architecture": "mistral9"},
    "no chat template; put the model's chat_template.jinja beside it": {"tokenizer__chat_template": None},
    "cuts text by the rule 'tekken', wanted .*; put the model's tokenizer.json beside": {
        "tokenizer__ggml__pre": "tekken"
    },
    "is of the kind 'llama', wanted .*tokenizer.json": {"tokenizer__ggml__model": "llama"},
    "names no end token": {"tokenizer__ggml__eos_token_id": None},
    "its eos token has the number 99999": {"tokenizer__ggml__eos_token_id": 99999},
    "it has no tokenizer.ggml.tokens, wanted the file of a whole language model": {"tokenizer__ggml__tokens": None},
    "vocabulary and merges do not fit": {"tokenizer__ggml__merges": ["q z"]},
    r"does not read its llama.rope.scaling.type \(yarn\)": {"llama__rope__scaling__type": "yarn"},
    r"does not read its llama.attention.value_length \(32\)": {"llama__attention__value_length": 32},
    "1 weights that its metadata ask for are missing, first model.layers.1.mlp.up_proj.weight": {
        "tensors": without("blk.1.ffn_up.weight")
    },
    "so it is a variant that is not known": {"tensors": with_one_more},
    "its tensors hold .* numbers and LlamaForCausalLM in transformers takes": {"llama__block_count": 1},
    r"cannot load it \(.*size mismatch for model.layers.0": {"llama__feed_forward_length": 96},
    "one part of a split file": {"split__count": 3},
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_file_that_would_become_another_model_is_refused(
    tiny_chatml: Path, own_cache: Path, tmp_path: Path, message: str
) -> None:
    path = write_gguf(tiny_chatml, tmp_path / "tiny.gguf", **REFUSED[message])
    with pytest.raises(ModelError, match=message) as raised:
        resolve(str(path))
    assert str(path) in str(raised.value) and "\n" not in str(raised.value) and len(str(raised.value)) < 500
    assert not own_cache.exists() or not [made for made in own_cache.iterdir() if made.is_dir()]


def test_metadata_that_changes_nothing_is_no_reason_to_refuse(
    tiny_chatml: Path, own_cache: Path, tmp_path: Path
) -> None:
    same = {"llama__attention__key_length": 16, "llama__rope__scaling__type": "none", "llama__expert_count": 0}
    assert resolve(str(write_gguf(tiny_chatml, tmp_path / "tiny.gguf", **same))).path.is_dir()


def test_what_is_no_whole_gguf_file_is_refused(tiny_chatml: Path, own_cache: Path, tmp_path: Path) -> None:
    path = write_gguf(tiny_chatml, tmp_path / "files" / "tiny.gguf")
    whole = path.read_bytes()
    for kept in (30, 300, 5000, len(whole) // 2, len(whole) - 100):
        path.write_bytes(whole[:kept])
        with pytest.raises(ModelError, match=r"tiny.gguf: cut short or damaged .*download it again") as raised:
            resolve(str(path))
        assert "\n" not in str(raised.value)
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(ModelError, match="tiny.gguf: not a GGUF file"):
        resolve(str(path))
    path.rename(path.with_name("tiny-00001-of-00003.gguf"))
    with pytest.raises(ModelError, match="not a GGUF file"):
        resolve(str(path.parent))
    path.with_name("tiny-00001-of-00003.gguf").write_bytes(whole)
    with pytest.raises(ModelError, match="one part of a split file; join the parts first"):
        resolve(str(path.parent))
    path.with_name("tiny-00002-of-00003.gguf").write_bytes(whole)
    with pytest.raises(ModelError, match=r"holds 2 GGUF files \(tiny-00001-of-00003.gguf, tiny-0.*join the parts"):
        resolve(str(path.parent))
    path.with_name("tiny-00001-of-00003.gguf").rename(path.with_name("other.gguf"))
    with pytest.raises(ModelError, match=r"holds 2 GGUF files \(other.gguf, tiny-0.*name the file"):
        resolve(str(path.parent))
    with pytest.raises(ModelError, match="models/missing.gguf: no such file"):
        resolve("models/missing.gguf")
    assert resolve(str(shutil.copytree(tiny_chatml, path.parent, dirs_exist_ok=True))).path == path.parent
    (path.parent / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="no weights in this folder, .*; name the file other.gguf itself as the model"):
        resolve(str(path.parent))


def test_a_cache_without_room_and_a_missing_package_are_one_line(
    tiny_chatml: Path, own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tiny_chatml, tmp_path / "tiny.gguf")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(conversions.shutil, "disk_usage", lambda place: usage._replace(free=1000))
    with pytest.raises(ModelError, match=r"needs 0\.1 GB and the disk has 0\.0 GB free; set NEXTTURN_CACHE"):
        resolve(str(path))
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"tiny.gguf: reading it needs the package gguf; pip install 'gguf>=0.17'"):
        resolve(str(path))


def test_a_template_beside_the_file_comes_first_and_makes_a_folder_of_its_own(
    tiny_chatml: Path, own_cache: Path, tmp_path: Path
) -> None:
    first = resolve(str(write_gguf(tiny_chatml, tmp_path / "files" / "tiny.gguf")))
    template = load_tokenizer(first).chat_template
    (tmp_path / "files" / "chat_template.jinja").write_text(template + " ")
    second = resolve(str(tmp_path / "files"))
    assert second.path != first.path and load_tokenizer(second).chat_template == template + " "
    write_gguf(tiny_chatml, tmp_path / "files" / "tiny.gguf", tokenizer__chat_template=None)
    assert load_tokenizer(resolve(str(tmp_path / "files"))).chat_template == template + " "


def test_a_tokenizer_beside_the_file_serves_where_the_file_s_cannot_be_made(
    tiny_chatml: Path, own_cache: Path, tmp_path: Path
) -> None:
    path = write_gguf(tiny_chatml, tmp_path / "files" / "tiny.gguf", tokenizer__ggml__pre="of the future")
    beside = Path(shutil.copy(tiny_chatml / "tokenizer.json", path.parent))
    ours, theirs = load_tokenizer(resolve(str(path))), load_tokenizer(resolve(str(tiny_chatml)))
    text = theirs.apply_chat_template(CHAT, tokenize=False)
    assert ours(text).input_ids == theirs(text).input_ids and ours.eos_token == "<|im_end|>"
    beside.write_text("{}")
    with pytest.raises(ModelError, match="tokenizer.json: the tokenizers package cannot read it"):
        resolve(str(path))


@pytest.mark.parametrize("harm", ["two tokens swapped", "a token less", "a token more", "other merges", "another cut"])
def test_a_tokenizer_that_differs_from_the_file_s_vocabulary_is_refused(
    tiny_chatml: Path, own_cache: Path, tmp_path: Path, harm: str
) -> None:
    path = write_gguf(tiny_chatml, tmp_path / "files" / "tiny.gguf")
    beside = json.loads((tiny_chatml / "tokenizer.json").read_text())
    vocabulary, merges, added = beside["model"]["vocab"], beside["model"]["merges"], beside["added_tokens"]
    if harm == "two tokens swapped":
        vocabulary["\u0120apples"], vocabulary["\u0120gives"] = vocabulary["\u0120gives"], vocabulary["\u0120apples"]
        message = r"token \d+, '\u0120(apples|gives)', has the number \d+ there"
    elif harm == "a token less":
        beside["added_tokens"] = [token for token in added if token["content"] != "<|im_end|>"]
        message = r"token \d+, '<\|im_end\|>', has the number \d+ there"
    elif harm == "a token more":
        added.append(added[-1] | {"content": "<|new|>", "id": added[-1]["id"] + 1})
        message = r"1 tokens are not in the file, first '<\|new\|>'"
    elif harm == "other merges":
        beside["model"]["merges"] = merges[::-1]
        message = "is cut into .*, and by the file's merges into"
    else:
        beside["pre_tokenizer"] = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": True,
        }
        message = "'Anna has 12 apples.* is cut into .*, and by the file's merges into"
    (path.parent / "tokenizer.json").write_text(json.dumps(beside))
    with pytest.raises(ModelError, match=f"the tokenizer.json beside it differs from the file: .*{message}") as raised:
        resolve(str(path))
    assert "\n" not in str(raised.value)


def test_the_patterns_are_those_that_the_families_publish() -> None:
    from transformers.convert_slow_tokenizer import TikTokenConverter
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX as qwen2
    from transformers.models.qwen3_5.tokenization_qwen3_5 import PRETOKENIZE_REGEX as qwen35

    llama3 = inspect.signature(TikTokenConverter.__init__).parameters["pattern"].default
    cuts = module._CUTS
    assert [cuts[name].pattern for name in ("qwen2", "qwen35", "llama-bpe")] == [qwen2, qwen35, llama3]


def test_llama_3_s_scaling_of_positions_and_begin_token_are_found_again(
    tiny_chatml: Path, own_cache: Path, tmp_path: Path
) -> None:
    import numpy as np
    import torch
    from transformers import AutoConfig

    scaled = copy_of(tiny_chatml, tmp_path / "scaled")
    rope = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    change_json(scaled / "config.json", rope_parameters=rope, max_position_embeddings=131072)
    # As convert_hf_to_gguf.py computes them from a Llama 3 configuration.
    waves = 2 * np.pi * 500000.0 ** (np.arange(0, 16, 2) / 16)
    smooth = (8192 / waves - 1.0) / (4.0 - 1.0)
    between = 1 / ((1 - smooth) / 32.0 + smooth)
    factors = np.where(waves < 8192 / 4.0, 1.0, np.where(waves > 8192 / 1.0, 32.0, between)).astype(np.float32)
    assert len(set(factors)) > 2

    path = write_gguf(
        scaled,
        tmp_path / "tiny.gguf",
        tokenizer__ggml__pre="llama-bpe",
        tokenizer__ggml__add_bos_token=None,
        tensors=lambda tensors: tensors | {"rope_freqs.weight": factors},
    )
    folder = resolve(str(path))
    assert AutoConfig.from_pretrained(folder.path).rope_parameters == rope
    ids = torch.arange(300, 900)[None]
    ours, theirs = (load_model(resolve(str(place)), device="cpu") for place in (path, scaled))
    with torch.no_grad():
        assert (ours(ids).logits - theirs(ids).logits).abs().max() < 1e-6
    tokenizer = load_tokenizer(folder)
    assert tokenizer.convert_ids_to_tokens(tokenizer("1234").input_ids)[0] == tokenizer.bos_token
    assert tokenizer.decode(tokenizer("1234", add_special_tokens=False).input_ids) == "1234"

    factors[3] *= 1.5
    write_gguf(scaled, path, tensors=lambda tensors: tensors | {"rope_freqs.weight": factors})
    with pytest.raises(ModelError, match="its rope_freqs.weight is no scaling of Llama 3"):
        resolve(str(path))
