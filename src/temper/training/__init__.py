"""Training: advantages, losses, packing, log-probs, optimiser, trainer, stages. One trainer, blind to algorithms."""
