"""Verifiers measured: known answers, near misses and attacks through the real graders, and what came of it as a card.

`measure.measure(kind)` audits a domain with its verifier; `cards.problem(kind)` says why it may not be trained on.
Domains and environments are reached through their protocols, models are not needed.
"""
