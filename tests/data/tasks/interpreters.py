"""Slow interpreters that answer a row of a task word by word, each obviously right.

They read the words of a row, and know nothing of how the row was made.
"""

from __future__ import annotations

from collections.abc import Callable

from elman.sections.tasks import TaskConfig

NOTHING = "."
Words = list[str]


def parity(words: Words, config: TaskConfig) -> Words:
    found, odd = [], False
    for word in words:
        if word == "1":
            odd = not odd
        found.append("odd" if odd else "even")
    return found


def modular_counter(words: Words, config: TaskConfig) -> Words:
    found, total = [], 0
    for word in words:
        total += int(word)
        found.append(str(total % config.modulus))
    return found


def modular_quadratic(words: Words, config: TaskConfig) -> Words:
    found, state = [], 0
    for word in words:
        state = (state**2 + int(word)) % config.modulus
        found.append(str(state))
    return found


def fsm(words: Words, config: TaskConfig) -> Words:
    found, heading = [], 0
    for word in words:
        if word == "right":
            heading = 0 if heading == config.states - 1 else heading + 1
        if word == "left":
            heading = config.states - 1 if heading == 0 else heading - 1
        found.append(str(heading))
    return found


def dyck1(words: Words, config: TaskConfig) -> Words:
    found, depth = [], 0
    for word in words:
        depth += {"(": 1, ")": -1}[word]
        assert 0 <= depth <= config.depth
        found.append(str(depth))
    return found


def dyck2(words: Words, config: TaskConfig) -> Words:
    """Check the brackets of a row; the last position's answer cannot be read from the row."""
    stack: Words = []
    closers = {"(": ")", "[": "]"}
    found = []
    for place, word in enumerate(words):
        if word in closers:
            stack.append(closers[word])
        else:
            assert stack.pop() == word
        assert len(stack) <= config.depth
        closes_next = place + 1 < len(words) and words[place + 1] not in closers
        found.append(stack[-1] if closes_next else NOTHING)
    return found


def copy(words: Words, config: TaskConfig) -> Words:
    seen, found, going = [], [], False
    for word in words:
        going = going or word == "go"
        if not going and word != "_":
            seen.append(word)
        found.append(seen.pop(0) if going and seen else NOTHING)
    return found


def recall(words: Words, config: TaskConfig) -> Words:
    known, found = {}, []
    pairs = 2 * config.pairs
    for key, value in zip(words[0:pairs:2], words[1:pairs:2], strict=True):
        assert key not in known
        known[key] = value
        found += [NOTHING, NOTHING]
    return found + [known[key] for key in words[pairs:]]


def overwrite_recall(words: Words, config: TaskConfig) -> Words:
    known: dict[str, Words] = {}
    for key, value in _pairs(words):
        known.setdefault(key, []).append(value)
    assert len(known[words[-1]]) >= 2
    return [NOTHING] * (len(words) - 1) + [known[words[-1]][-1]]


def reset_recall(words: Words, config: TaskConfig) -> Words:
    known: dict[str, str] = {}
    for key, value in _pairs(words):
        if key == "reset":
            assert value == "_"
            known.clear()
        else:
            known[key] = value
    return [NOTHING] * (len(words) - 1) + [known.get(words[-1], "none")]


def keyed_fsm(words: Words, config: TaskConfig) -> Words:
    known: dict[str, int] = {}
    for key, order in _pairs(words):
        before = known.get(key, 0) if order[0] == "+" else 0
        known[key] = (before + int(order[1:])) % config.modulus
    return [NOTHING] * (len(words) - 1) + [str(known.get(words[-1], 0))]


def permutations(words: Words, config: TaskConfig) -> Words:
    """Let each object go where every permutation sends it, one after the other."""
    places = [str(n + 1) for n in range(config.objects)]
    found = []
    for word in words:
        places = [word[int(place) - 1] for place in places]
        found.append("".join(places))
    return found


def _pairs(words: Words) -> list[tuple[str, str]]:
    """Return the pairs of a row before its last word; an even row begins with a blank."""
    inside = words[:-1] if len(words) % 2 else words[1:-1]
    return list(zip(inside[0::2], inside[1::2], strict=True))


INTERPRETERS: dict[str, Callable[[Words, TaskConfig], Words]] = {
    "parity": parity,
    "modular_counter": modular_counter,
    "modular_quadratic": modular_quadratic,
    "fsm": fsm,
    "dyck1": dyck1,
    "dyck2": dyck2,
    "copy": copy,
    "selective_copy": copy,
    "recall": recall,
    "overwrite_recall": overwrite_recall,
    "reset_recall": reset_recall,
    "keyed_fsm": keyed_fsm,
    "s3": permutations,
    "s5": permutations,
}
