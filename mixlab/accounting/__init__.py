"""Parameters, multiply-adds and their formulas as named lines: whole numbers only, no torch."""

from mixlab.accounting.account import Account, Line, in_group
from mixlab.accounting.conventions import CONVENTIONS, FULL, LABELLED, Convention

__all__ = ["CONVENTIONS", "FULL", "LABELLED", "Account", "Convention", "Line", "in_group"]
