"""Plugins for the audit's tests: a domain, and verifiers with the flaws that others' have had."""
