"""Parameters, multiply-adds and their formulas as named lines: whole numbers only, no torch."""

from mixlab.accounting.account import Account, Line, Mixing, in_group
from mixlab.accounting.conventions import FULL, LABELLED, PAPERS, Convention

__all__ = ["FULL", "LABELLED", "PAPERS", "Account", "Convention", "Line", "Mixing", "in_group"]
