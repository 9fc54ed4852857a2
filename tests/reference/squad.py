"""The rules of SQuAD's official scorer (evaluate-v2.0), character by character and word by word, and its search for the best threshold."""

from __future__ import annotations

PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"


def normalised(text: str) -> list[str]:
    """The words that count."""
    kept = "".join(character for character in text.lower() if character not in PUNCTUATION)
    pieces, word = [], ""
    for character in kept:  # a word is a run of letters, digits and underscores; all else separates words, and stays
        if character.isalnum() or character == "_":
            word += character
        else:
            pieces += [word, character]
            word = ""
    pieces.append(word)
    return "".join(" " if piece in ("a", "an", "the") else piece for piece in pieces).split()


def counted(golds: list[str]) -> list[list[str]]:
    return [gold for gold in map(normalised, golds) if gold] or [[]]


def exact(found: str, golds: list[str]) -> int:
    return max(int(normalised(found) == gold) for gold in counted(golds))


def f1(found: str, golds: list[str]) -> float:
    best = 0.0
    for gold in counted(golds):
        words, same = normalised(found), 0
        left = list(gold)
        for word in words:
            if word in left:
                left.remove(word)
                same += 1
        if not words or not gold:
            score = float(words == gold)
        elif same == 0:
            score = 0.0
        else:
            precision, recall = same / len(words), same / len(gold)
            score = 2 * precision * recall / (precision + recall)
        best = max(best, score)
    return best


def best_score(margins: list[float], answered: list[float], silent: list[float]) -> float:
    """The highest mean over every threshold that tells the questions apart: silent where the margin is above it."""
    best = sum(silent)
    for threshold in margins:
        total = sum(s if margin > threshold else a for margin, a, s in zip(margins, answered, silent, strict=True))
        best = max(best, total)
    return best / len(margins)
