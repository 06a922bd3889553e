"""The chunked log-probs against torch's dense ones, in fp64, values and gradients."""

from __future__ import annotations

import pytest
import torch

from temper.training import logprobs as module
from temper.training.logprobs import logprobs


def dense(hidden, head, targets, temperature):
    return torch.log_softmax(hidden @ head.T / temperature, -1).gather(1, targets[:, None])[:, 0]


@pytest.fixture
def inputs(monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 3 * 50)  # three tokens at a time
    monkeypatch.setattr(module, "ROWS", 1)
    torch.manual_seed(0)
    hidden = torch.randn(10, 8, dtype=torch.float64, requires_grad=True)
    head = torch.randn(50, 8, dtype=torch.float64, requires_grad=True)
    return hidden, head, torch.randint(0, 50, (10,))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_and_gradients_are_the_dense_ones(inputs, temperature):
    hidden, head, targets = inputs
    upstream = torch.randn(10, dtype=torch.float64)
    found, entropy = logprobs(hidden, head, targets, temperature, entropy=True)
    mine = torch.autograd.grad(found @ upstream, (hidden, head))
    reference = dense(hidden, head, targets, temperature)
    theirs = torch.autograd.grad(reference @ upstream, (hidden, head))
    torch.testing.assert_close(found, reference)
    torch.testing.assert_close(mine, theirs)
    expected = torch.distributions.Categorical(logits=hidden @ head.T / temperature).entropy()
    torch.testing.assert_close(entropy, expected)
    assert not entropy.requires_grad


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_entropy_has_the_gradient_of_torchs_where_it_is_trained(inputs, temperature):
    hidden, head, targets = inputs
    upstream, of_entropy = torch.randn(2, 10, dtype=torch.float64)
    found, entropy = logprobs(hidden, head, targets, temperature, entropy=True, entropy_trained=True)
    mine = torch.autograd.grad(found @ upstream + entropy @ of_entropy, (hidden, head))
    expected = torch.distributions.Categorical(logits=hidden @ head.T / temperature).entropy()
    reference = dense(hidden, head, targets, temperature) @ upstream + expected @ of_entropy
    torch.testing.assert_close(entropy, expected)
    torch.testing.assert_close(mine, torch.autograd.grad(reference, (hidden, head)))


def test_a_frozen_head_needs_no_second_pass(inputs):
    hidden, head, targets = inputs
    (mine,) = torch.autograd.grad(logprobs(hidden, head.detach(), targets)[0].sum(), (hidden,))
    (theirs,) = torch.autograd.grad(dense(hidden, head, targets, 1.0).sum(), (hidden,))
    torch.testing.assert_close(mine, theirs)


def test_bf16_is_computed_in_fp32(inputs):
    hidden, head, targets = (x.to(torch.bfloat16) if x.is_floating_point() else x for x in inputs)
    found, _ = logprobs(hidden, head, targets)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, dense(hidden.float(), head.float(), targets, 1.0))


def test_no_position_is_no_work(inputs):
    hidden, head, targets = inputs
    found, entropy = logprobs(hidden[:0], head, targets[:0], entropy=True)
    assert found.shape == entropy.shape == (0,)
