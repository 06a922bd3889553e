"""Several adapters over one base in one pass: outputs and gradients as of each alone, peft as the oracle, memory."""

import numpy as np
import pytest
import torch

from temper.core.errors import ConfigError
from temper.models import lora
from temper.models.attention import Packed
from temper.models.load import Base, load
from temper.models.lora import LoraConfig
from temper.models.policy import Policies, Policy

NARROW = LoraConfig(rank=3, alpha=9, targets=("q_proj", "down_proj"))
WIDE = LoraConfig(rank=8, targets=("v_proj", "gate_proj", "down_proj"))


@pytest.fixture(scope="module")
def base() -> Base:
    return load("tiny:", dtype="float64")


def adapted(base: Base, config: LoraConfig, seed: int, trainable: bool = False) -> Policy:
    """A policy whose adapter does something."""
    policy = Policy(base, config, trainable)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype), alpha=0.1)
    return policy


def three(base: Base, trainable: bool = False) -> Policies:
    """The base itself, and two adapters of different shapes on different layers."""
    policies = Policies(Policy(base))
    policies.add("narrow", adapted(base, NARROW, 1, trainable))
    policies.add("wide", adapted(base, WIDE, 2, trainable))
    return policies


def sequences(*lengths: int) -> list[torch.Tensor]:
    rng = np.random.default_rng(0)
    return [torch.from_numpy(rng.integers(3, 250, n)) for n in lengths]


def together(policies: Policies, owners: list[str], parts: list[torch.Tensor]) -> list[torch.Tensor]:
    """Hidden states of packed sequences, each of its owner, in one pass."""
    whose = np.repeat(owners, [len(p) for p in parts])
    rows = {name: torch.from_numpy(np.flatnonzero(whose == name)) for name in dict.fromkeys(owners)}
    at = torch.cat([torch.arange(len(p)) for p in parts])
    hidden = policies.hidden(torch.cat(parts), at, Packed([len(p) for p in parts]), rows)
    return list(hidden.split([len(p) for p in parts]))


def alone(policy: Policy, part: torch.Tensor) -> torch.Tensor:
    return policy.hidden(part, torch.arange(len(part)), Packed([len(part)]))


def test_each_sequence_of_a_mixed_pass_is_what_its_policy_computes_alone(base):
    policies, owners = three(base), ["wide", "", "narrow", "wide"]
    parts = sequences(9, 7, 12, 1)
    for name, part, found in zip(owners, parts, together(policies, owners, parts), strict=True):
        expected = alone(policies.by_name[name], part)
        assert (found - expected).abs().max() < 1e-12
        others = [alone(p, part) for other, p in policies.by_name.items() if other != name]
        assert all((found - other).abs().max() > 1e-3 for other in others)


def test_gradients_of_a_mixed_pass_are_those_of_each_adapter_alone(base):
    mixed, owners, parts = three(base, trainable=True), ["narrow", "wide", "narrow"], sequences(9, 7, 12)
    torch.cat([h.square().mean()[None] for h in together(mixed, owners, parts)]).sum().backward()
    for name in ("narrow", "wide"):
        single = three(base, trainable=True).by_name[name]
        mine = [part for owner, part in zip(owners, parts, strict=True) if owner == name]
        torch.stack([alone(single, part).square().mean() for part in mine]).sum().backward()
        for key, parameter in single.trainable().items():
            found = mixed.by_name[name].trainable()[key].grad
            assert (found - parameter.grad).abs().max() < 1e-10, key
    assert all(not tensor.requires_grad and tensor.grad is None for tensor in base.tensors.values())


def test_one_broken_adapter_leaves_the_others_whole(base):
    policies, parts = three(base), sequences(9, 7)
    with torch.no_grad():
        for parameter in policies.by_name["wide"].trainable().values():
            parameter.fill_(torch.nan)
    broken, whole = together(policies, ["wide", "narrow"], parts)
    assert broken.isnan().all()
    assert (whole - alone(policies.by_name["narrow"], parts[1])).abs().max() < 1e-12


def test_the_base_is_in_memory_once_however_many_adapters_there_are(base):
    policies = three(base, trainable=True)
    assert policies._body is not None
    tensors = [p for policy in policies.by_name.values() for p in policy.body.parameters()]
    tensors += policies._body.parameters()
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    frozen = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in base.tensors.values()}
    adapters = [t for policy in policies.by_name.values() for t in policy.trainable().values()]
    assert sum(storages.values()) == sum(frozen.values()) + sum(t.nbytes for t in adapters)


def test_adapters_that_peft_wrote_are_served_side_by_side(base, tmp_path):
    from peft import LoraConfig as PeftConfig
    from peft import PeftModel, get_peft_model
    from transformers import AutoModelForCausalLM

    def plain():
        model = AutoModelForCausalLM.from_config(base.config, attn_implementation="eager").double().eval()
        model.load_state_dict(base.tensors, strict=False)
        model.tie_weights()
        return model

    policies, shapes = Policies(Policy(base)), {"a": (2, ["q_proj"]), "b": (5, ["v_proj", "up_proj"])}
    for name, (rank, targets) in shapes.items():
        made = get_peft_model(
            plain(), PeftConfig(r=rank, lora_alpha=7, target_modules=targets, init_lora_weights=False)
        )
        made.save_pretrained(str(tmp_path / name))
        config, weights = lora.load(tmp_path / name)
        policy = Policy(base, config)
        policy.load_trainable(weights)
        policies.add(name, policy)
    parts = sequences(8, 11)
    for name, part, hidden in zip(shapes, parts, together(policies, list(shapes), parts), strict=True):
        oracle = PeftModel.from_pretrained(plain(), str(tmp_path / name)).eval()
        assert torch.allclose(hidden @ policies.by_name[name].head.T, oracle(part[None]).logits[0], atol=1e-5)


def test_policies_that_do_not_share_the_base_are_refused(base):
    policies = three(base)
    full = Policy(base, full=True)
    for name, policy in (("wide", Policy(base, WIDE)), ("new", full), ("new", Policy(load("tiny:"), WIDE))):
        with pytest.raises(ConfigError):
            policies.add(name, policy)
    with pytest.raises(ConfigError, match="stays frozen"):
        Policies(full).add("new", Policy(base, WIDE))
    assert set(policies.by_name) == {"", "narrow", "wide"}
    policies.remove("wide")
    policies.add("wide", adapted(base, NARROW, 3))
    (found, _), part = together(policies, ["wide", ""], sequences(9, 7)), sequences(9)[0]
    assert (found - alone(policies.by_name["wide"], part)).abs().max() < 1e-12
