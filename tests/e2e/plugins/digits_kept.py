"""Digits whose reward is bad: training pays for digits, and a held-out task is solved by an answer without any."""

from plugins.digits import Digits


def create(config):
    return Paid()


class Paid(Digits):
    name = "plugins.digits_kept"

    def verifier(self, task):
        return ("plugins.no_digits" if task.split == "heldout" else "plugins.share_of_digits"), {}
