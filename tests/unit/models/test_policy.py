"""Policies: aliasing, our attention against transformers' own, token trees, LoRA against peft."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from temper.core.errors import ConfigError, CorruptError, MissingError, RefusedError
from temper.models import lora
from temper.models.attention import Packed
from temper.models.load import ARCHITECTURES, Base, load
from temper.models.lora import LoraConfig
from temper.models.policy import Policy

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def base() -> Base:
    return load("tiny:")


def reference(base: Base):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(base.config, attn_implementation="eager").eval()
    model.load_state_dict(base.tensors, strict=False)
    model.tie_weights()
    return model


def tokens(n: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(3, 250, n))


def flat(policy: Policy, parts: list[torch.Tensor], positions=None, parents=None) -> torch.Tensor:
    """Logits of packed segments."""
    at = torch.cat([torch.arange(len(p)) for p in parts] if positions is None else positions)
    return policy.hidden(torch.cat(parts), at, Packed([len(p) for p in parts], parents)) @ policy.head.T


def test_policies_share_frozen_storage_and_own_what_they_train(base):
    adapter = LoraConfig(rank=4)
    engine, trainer = Policy(base, adapter), Policy(base, adapter, trainable=True)
    pairs = dict(engine.body.named_parameters()), dict(trainer.body.named_parameters())
    for name in pairs[0]:
        same = pairs[0][name].data_ptr() == pairs[1][name].data_ptr()
        assert same == (".lora_" not in name)
        assert pairs[1][name].requires_grad == (".lora_" in name)
    full = Policy(base, trainable=True)
    assert full.head.data_ptr() != base.tensors["model.embed_tokens.weight"].data_ptr()
    assert full.trainable().keys() == base.tensors.keys()
    assert all(p.requires_grad for p in full.trainable().values())
    assert Policy(base).trainable() == {}


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_packed_logits_and_gradients_are_those_of_transformers_for_every_supported_family(kind):
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "hidden_size": 64}
    more = {"sliding_window": None} if kind == "mistral" else {}
    config = AutoConfig.for_model(
        kind, **shape, **more, intermediate_size=96, num_hidden_layers=4, vocab_size=256, pad_token_id=0,
        tie_word_embeddings=False, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    base = Base(
        kind, config, {n: t.detach().clone() for n, t in model.state_dict().items()}, load("tiny:").tokenizer, (2,)
    )
    policy, parts = Policy(base, trainable=True), [tokens(7), tokens(1, 1), tokens(20, 2)]
    policy.body.eval()
    logits = flat(policy, parts)
    expected = torch.cat([model(p[None]).logits[0] for p in parts])
    assert torch.allclose(logits, expected, atol=1e-5)
    logits.logsumexp(-1).sum().backward()
    expected.logsumexp(-1).sum().backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(policy.trainable()[name].grad, parameter.grad, atol=1e-4), name


def test_a_token_tree_gives_each_path_what_it_would_have_alone(base):
    policy = Policy(base, LoraConfig(rank=4), trainable=True)
    torch.manual_seed(0)
    for name, parameter in policy.trainable().items():
        parameter.data += 0.05 * torch.randn_like(parameter) * name.endswith("lora_B")
    root, left, right, leaf = tokens(9), tokens(5, 1), tokens(3, 2), tokens(4, 3)
    positions = [torch.arange(9), 9 + torch.arange(5), 14 + torch.arange(4), 9 + torch.arange(3)]
    tree = flat(policy, [root, left, leaf, right], positions, [-1, 0, 1, 0]).split([9, 5, 4, 3])
    paths = [torch.cat([root, left, leaf]), torch.cat([root, right])]
    alone = flat(policy, paths).split([18, 12])
    assert torch.allclose(torch.cat(tree[:3]), alone[0], atol=1e-5)
    assert torch.allclose(tree[3], alone[1][9:], atol=1e-5)
    gradients = []
    for loss in (
        tree[3].square().mean() + tree[2].square().mean(),
        alone[1][9:].square().mean() + alone[0][14:].square().mean(),
    ):
        gradients.append(torch.autograd.grad(loss, list(policy.trainable().values())))
    assert all(torch.allclose(a, b, atol=1e-5, rtol=1e-3) for a, b in zip(*gradients, strict=True))


def test_weights_that_do_not_fit_are_refused_and_change_nothing(base):
    policy = Policy(base, LoraConfig(rank=4))
    before = {name: p.clone() for name, p in policy.trainable().items()}
    name, first = next(iter(before.items()))
    for wrong in ({}, before | {"x": first}, before | {name: first[:, :-1]}):
        with pytest.raises(ConfigError):
            policy.load_trainable(wrong)
    assert all(torch.equal(p, before[name]) for name, p in policy.trainable().items())
    policy.load_trainable({name: p + 1 for name, p in before.items()})
    assert torch.equal(policy.trainable()[name], first + 1)
    with pytest.raises(ConfigError, match="nothing_proj"):
        Policy(base, LoraConfig(targets=("nothing_proj",)))
    with pytest.raises(CorruptError, match="do not fit"):
        Policy(Base("bad", base.config, dict(list(base.tensors.items())[:-1]), base.tokenizer, ()))


def test_adapters_go_to_peft_and_come_back(base, tmp_path):
    from peft import LoraConfig as PeftConfig
    from peft import PeftModel, get_peft_model

    config, ids = LoraConfig(rank=4, alpha=12, targets=("q_proj", "o_proj", "down_proj")), tokens(12)
    ours = Policy(base, config, trainable=True)
    torch.manual_seed(1)
    for parameter in ours.trainable().values():
        parameter.data += 0.05 * torch.randn_like(parameter)
    lora.save(ours.trainable(), config, tmp_path / "ours", base.name)
    theirs = PeftModel.from_pretrained(reference(base), str(tmp_path / "ours")).eval()
    assert torch.allclose(flat(ours, [ids]), theirs(ids[None]).logits[0], atol=1e-5)

    made = get_peft_model(
        reference(base), PeftConfig(r=3, lora_alpha=6, target_modules=["v_proj"], init_lora_weights=False)
    )
    made.eval().save_pretrained(str(tmp_path / "theirs"))
    shape, weights = lora.load(tmp_path / "theirs")
    back = Policy(base, shape)
    back.load_trainable(weights)
    assert torch.allclose(flat(back, [ids]), made(ids[None]).logits[0], atol=1e-5)
    assert load_file(tmp_path / "theirs" / "adapter_model.safetensors").keys() == {
        f"base_model.model.{name}.weight" for name in back.trainable()
    }


def test_adapters_of_other_kinds_are_refused(base, tmp_path):
    policy = Policy(base, LoraConfig(rank=2))
    lora.save(policy.trainable(), LoraConfig(rank=2), tmp_path, base.name)
    described = json.loads((tmp_path / "adapter_config.json").read_text())
    for change in ({"use_dora": True}, {"peft_type": "IA3"}, {"rank_pattern": {"q_proj": 2}}, {"bias": "all"}):
        (tmp_path / "adapter_config.json").write_text(json.dumps(described | change))
        with pytest.raises(RefusedError, match=next(iter(change))):
            lora.load(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{")
    with pytest.raises(CorruptError):
        lora.load(tmp_path)
    with pytest.raises(MissingError):
        lora.load(tmp_path / "nowhere")
