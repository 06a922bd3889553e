"""Returns and advantages along one episode, for the algorithms that give credit by step. Pure functions.

A step is a sampled token, or a turn; what the environment wrote between them is no step.
"""

from __future__ import annotations

import numpy as np


def discounted(rewards: np.ndarray, gamma: float) -> np.ndarray:
    """Return-to-go of each step (n,): G_t = r_t + gamma G_{t+1}."""
    found, after = np.zeros(len(rewards)), 0.0
    for t in reversed(range(len(rewards))):
        found[t] = after = rewards[t] + gamma * after
    return found


def gae(rewards: np.ndarray, values: np.ndarray, gamma: float, lam: float) -> np.ndarray:
    """Generalised advantage estimates (n,), arXiv 1506.02438, of an episode that ends after its last step.

    delta_t = r_t + gamma V_{t+1} - V_t; A_t = delta_t + gamma lam A_{t+1}.
    """
    following = np.append(values[1:], 0.0)[: len(values)]
    return discounted(rewards + gamma * following - values, gamma * lam)
