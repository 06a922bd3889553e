"""Engines sample tokens: in this process (`torch`), from a script (`scripted`), or behind an endpoint (`openai`)."""
