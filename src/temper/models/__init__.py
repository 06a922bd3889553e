"""Base models by name, their weights, LoRA, attention, and the policy built over them; chat rendering is in `chat`."""
