"""Generated questions over contexts longer than a window: a report on one shipment, of which each fact is told once or not at all.

Between the facts stand remarks that hold words of the same kinds (other people, days, places), so that an answer is known by what is said
around it. Answers are of one to four words, with capitals, accents, digits and punctuation, so that characters, bytes and tokens differ.
"""

from __future__ import annotations

from typing import Any

import numpy as np

FIRST = ("Anna", "Ben", "Chloé", "Dmitri", "Zoë", "Felix", "Grace", "José", "Iris", "Łukasz", "Kate", "Søren")
LAST = ("Miller", "O'Neill", "Okafor", "Núñez", "Smith-Jones", "Weiß", "Tanaka", "Rossi", "Novák", "Dubois")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
PARTS = ("morning", "afternoon", "evening", "night")
PLACES = ("harbour", "station", "market", "castle", "mill", "chapel", "bridge", "garden", "café", "library")
KINDS = ("old", "new", "north", "south", "upper", "lower")
GOODS = ("lamps", "chairs", "clocks", "apples", "books", "bottles", "carpets", "violins", "tiles", "ropes")
COLOURS = ("red", "blue", "green", "yellow", "black", "white", "brown", "grey")

# The fact, with its answer in braces, and the question.
FACTS = (
    ("It was sent by {person}.", "Who sent it?"),
    ("It was received by {person}.", "Who received it?"),
    ("It left from the {place}.", "Where did it leave from?"),
    ("It was bound for the {place}.", "Where was it bound for?"),
    ("It left on {time}.", "When did it leave?"),
    ("It arrived on {time}.", "When did it arrive?"),
    ("It held {goods}.", "What did it hold?"),
    ("The price was {price}.", "What was the price?"),
)
REMARKS = (
    "{person} waved from the {place}.",
    "The {place} was closed on {time}.",
    "{person} and {person} talked about {goods}.",
    "On {time} it rained … as always.",
    "Nobody bought {goods} at the {place}.",
    "A ticket to the {place} cost {price}.",
)
LEAST, MOST = 14, 20  # remarks in a report
DRAWS = 400  # numbers that a report may use


def row(u: np.ndarray, unanswerable: float) -> dict[str, Any]:
    """One question as SQuAD has it; `unanswerable` is the share of questions whose fact is left out."""
    draws = iter(u)
    asked = int(next(draws) * len(FACTS))
    left_out = next(draws) < unanswerable
    told: list[tuple[float, str, int]] = []  # where in the report, the sentence, and where in it the answer begins; -1: not the answer
    answer = ""
    for number, (fact, _) in enumerate(FACTS):
        before, after = fact.split("{")[0], fact.split("}")[1]
        filler = _filler(fact.split("{")[1].split("}")[0], draws)
        if number == asked:
            answer = filler
        if number != asked or not left_out:
            told.append((next(draws), before + filler + after, len(before) if number == asked else -1))
    remarks = LEAST + int(next(draws) * (MOST - LEAST + 1))
    told += [(next(draws), _filled(REMARKS[int(next(draws) * len(REMARKS))], draws), -1) for _ in range(remarks)]
    context, start = "", -1
    for _, sentence, place in sorted(told):
        context += " " if context else ""
        start = len(context) + place if place >= 0 else start
        context += sentence
    answers = {"text": [], "answer_start": []} if left_out else {"text": [answer], "answer_start": [start]}
    return {"question": FACTS[asked][1], "context": context, "answers": answers}


def _filled(pattern: str, draws: Any) -> str:
    """A pattern with something for each pair of braces."""
    head, *rest = pattern.split("{")
    for part in rest:
        kind, tail = part.split("}")
        head += _filler(kind, draws) + tail
    return head


def _filler(kind: str, draws: Any) -> str:
    def one(words: tuple[str, ...]) -> str:
        return words[int(next(draws) * len(words))]

    if kind == "person":
        return f"{one(FIRST)} {one(LAST)}"
    if kind == "place":
        return f"{one(KINDS)} {one(PLACES)}"
    if kind == "time":
        return f"{one(DAYS)} {one(PARTS)}"
    if kind == "goods":
        return f"{int(next(draws) * 88) + 12} {one(COLOURS)} {one(GOODS)}"
    return f"€{int(next(draws) * 90) + 10},{int(next(draws) * 10)}50"
