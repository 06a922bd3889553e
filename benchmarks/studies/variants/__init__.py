"""Domains that only studies need."""
