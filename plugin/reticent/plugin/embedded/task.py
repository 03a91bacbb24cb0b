"""The embedded task: short questions over short passages of invented facts, and a checker of answers.

Everything is generated from a seed, so nothing here is anybody's data. Each passage tells a few facts about invented
people, towns, ships or shops; each question asks for one of them. A quarter of the questions ask for something that
the passage does not tell; the right answer is then to say so.

The loss of an answer is 1 when it is wrong or not supported by the passage, else 0 (`loss`).
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["EVIDENCE_TEMPLATE", "KINDS", "SITES", "Item", "generate", "is_right", "loss", "normalise"]

EVIDENCE_TEMPLATE = (
    "Read the passage and answer the question in one short sentence. "
    'If the passage does not give the answer, say "It is not stated."\n\n'
    "Passage: {evidence}\n\nQuestion: {question}"
)
"""How evidence and question become one user message (the wording that served SmolLM2 best in a trial)."""

KINDS: dict[str, float] = {"one": 0.25, "several": 0.35, "distractor": 0.10, "comparison": 0.05, "absent": 0.25}
"""Share of each kind of item: one fact, several facts about one subject, two subjects, two numbers, not in it."""

SITES: tuple[str, ...] = ("people", "places", "trade")
"""The three calibration sites, each with subjects of its own."""

# fmt: off
_NAMES = {
    "person": (
        "Alma", "Anton", "Bella", "Bruno", "Carla", "Clara", "Dora", "Edgar", "Elsa", "Emil", "Fiona",
        "Frank", "Greta", "Gustav", "Hanna", "Hugo", "Ida", "Ivan", "Jana", "Jonas", "Karl", "Kira",
        "Laura", "Leo", "Lina", "Lucas", "Maria", "Martin", "Mila", "Nora", "Oscar", "Paula", "Peter",
        "Rita", "Robert", "Sara", "Simon", "Stella", "Thomas", "Vera", "Victor", "Wanda", "Walter",
        "Zoe",
    ),
    "place": tuple(
        a + b
        for a in ("Green", "Stone", "River", "North", "Oak", "Silver", "Maple", "Bright", "Clear", "Red", "High", "Ash")
        for b in ("ford", "field", "wood", "bridge", "dale", "haven", "hill")
    ),
    "thing": (
        "Albatross", "Aurora", "Comet", "Dolphin", "Eagle", "Falcon", "Galaxy", "Horizon", "Jupiter",
        "Kestrel", "Liberty", "Mercury", "Meteor", "Neptune", "Orion", "Pelican", "Phoenix", "Polaris",
        "Raven", "Sparrow", "Swallow", "Tempest", "Titan", "Trident", "Venture", "Victory", "Voyager",
        "Zephyr",
    ),
}
# fmt: on
_JOBS = ("baker", "carpenter", "doctor", "gardener", "painter", "pilot", "tailor", "teacher", "weaver", "clockmaker")
_PETS = ("cat", "dog", "parrot", "rabbit", "turtle", "goat", "ferret", "pony")
_GOODS = ("salt", "wool", "copper", "tea", "timber", "glass", "barley", "paper", "olive oil", "silk")
_COLOURS = ("blue", "green", "red", "yellow", "white", "black", "purple", "orange")
_MATERIALS = ("oak", "bronze", "clay", "silver", "bamboo", "granite", "leather", "marble")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_FLOWERS = ("rose", "tulip", "lily", "orchid", "daisy", "violet", "poppy", "iris")


@dataclass(frozen=True)
class _Attribute:
    """One kind of fact: its sentence, its question, where its values come from (`values`: a pool or a generator)."""

    name: str
    sentence: str
    question: str
    values: tuple[str, ...] | str


@dataclass(frozen=True)
class Item:
    """One question with its passage.

    Attributes:
        identifier: stable name, `SEED-INDEX`.
        site: one of `SITES`.
        kind: one of `KINDS`.
        passage: the evidence.
        question: what is asked.
        answer: the right value, or None where the passage does not give it.
        wrong_values: values in the passage of which naming one makes an answer wrong.
    """

    identifier: str
    site: str
    kind: str
    passage: str
    question: str
    answer: str | None
    wrong_values: tuple[str, ...]


_PERSON = (
    _Attribute("home", "{s} lives in {v}.", "Where does {s} live?", "place"),
    _Attribute("job", "{s} works as a {v}.", "What is {s}'s job?", _JOBS),
    _Attribute("pet", "{s} has a {v}.", "What pet does {s} have?", _PETS),
    _Attribute("year", "{s} was born in {v}.", "In what year was {s} born?", "year"),
    _Attribute("friend", "{s}'s best friend is {v}.", "Who is {s}'s best friend?", "person"),
    _Attribute("colour", "{s}'s favourite colour is {v}.", "What is {s}'s favourite colour?", _COLOURS),
)
_PLACE = (
    _Attribute("mayor", "The mayor of {s} is {v}.", "Who is the mayor of {s}?", "person"),
    _Attribute("founded", "{s} was founded in {v}.", "In what year was {s} founded?", "year"),
    _Attribute("market", "{s} holds its market on {v}.", "On which day does {s} hold its market?", _DAYS),
    _Attribute("people", "{s} has {v} inhabitants.", "How many inhabitants does {s} have?", "count"),
    _Attribute("goods", "{s} is known for its {v}.", "What is {s} known for?", _GOODS),
    _Attribute("flower", "The emblem of {s} is a {v}.", "What is the emblem of {s}?", _FLOWERS),
)
_TRADE = (
    _Attribute("captain", "The captain of the ship {s} is {v}.", "Who is the captain of the ship {s}?", "person"),
    _Attribute("cargo", "The ship {s} carries {v}.", "What does the ship {s} carry?", _GOODS),
    _Attribute("port", "The home port of the ship {s} is {v}.", "What is the home port of the ship {s}?", "place"),
    _Attribute("crew", "The ship {s} has a crew of {v}.", "How many people are in the crew of the ship {s}?", "crew"),
    _Attribute("built", "The ship {s} was built in {v}.", "In what year was the ship {s} built?", "year"),
    _Attribute(
        "figure",
        "The figurehead of the ship {s} is made of {v}.",
        "What is the figurehead of the ship {s} made of?",
        _MATERIALS,
    ),
)
_SUBJECTS = {"people": ("person", _PERSON), "places": ("place", _PLACE), "trade": ("thing", _TRADE)}
_COMPARISONS = {
    "year": (
        "Who was born later, {a} or {b}?",
        "Which was founded later, {a} or {b}?",
        "Which ship was built later, {a} or {b}?",
    ),
    "count": ("", "Which has more inhabitants, {a} or {b}?", ""),
    "crew": ("", "", "Which ship has the larger crew, {a} or {b}?"),
}
_ABSENT = re.compile(
    r"\bnot\b[^.]{0,40}\b(stated|given|mentioned|specified|provided|said|say|state|mention|specify|give|provide|known|clear)\b"
    r"|\bno (information|mention)\b|\bunknown\b|\bcannot be (determined|known)\b|\bunstated\b"
)


class _Writer:
    """Draws names, values and passages from one seeded generator (not a privacy mechanism)."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._used: set[str] = set()

    def name(self, kind: str) -> str:
        while True:
            word = self._rng.choice(_NAMES[kind])
            if word not in self._used:
                self._used.add(word)
                return word

    def value(self, attribute: _Attribute, taken: Sequence[str] = ()) -> str:
        while True:
            match attribute.values:
                case "person" | "place" as kind:
                    value = self.name(kind)
                case "year":
                    value = str(self._rng.randint(1700, 1999))
                case "count":
                    value = str(self._rng.randint(2, 98) * 100)
                case "crew":
                    value = str(self._rng.randint(5, 60))
                case str() as other:
                    raise ValueError(f"unknown source of values: {other}")
                case pool:
                    value = self._rng.choice(pool)
            if value not in taken:
                return value

    def item(self, identifier: str, site: str, kind: str) -> Item:
        name_kind, attributes = _SUBJECTS[site]
        subject = self.name(name_kind)
        count = 1 if kind == "one" else self._rng.randint(3, 4)
        chosen = self._rng.sample(attributes, count)
        if kind == "comparison":
            return self._comparison(identifier, site, name_kind, attributes, subject)
        facts = [(subject, a, self.value(a)) for a in chosen]
        asked, answer = chosen[0], facts[0][2]
        wrong = [value for _, _, value in facts[1:]]
        if kind == "distractor":
            other = self.name(name_kind)
            rival = self.value(asked, taken=(answer,))
            facts = [*facts[:2], (other, asked, rival), (other, chosen[1], self.value(chosen[1], taken=(facts[1][2],)))]
            wrong = [value for _, _, value in facts if value != answer]
        if kind == "absent":
            asked = self._rng.choice([a for a in attributes if a not in chosen])
            wrong = [value for _, _, value in facts]
        self._rng.shuffle(facts)
        passage = " ".join(a.sentence.format(s=s, v=v) for s, a, v in facts)
        question = asked.question.format(s=subject)
        return Item(identifier, site, kind, passage, question, None if kind == "absent" else answer, tuple(wrong))

    def _comparison(
        self, identifier: str, site: str, name_kind: str, attributes: Sequence[_Attribute], first: str
    ) -> Item:
        column = SITES.index(site)
        asked = {name: questions[column] for name, questions in _COMPARISONS.items() if questions[column]}
        usable = [(a, asked[a.values]) for a in attributes if isinstance(a.values, str) and a.values in asked]
        attribute, wording = self._rng.choice(usable)
        second = self.name(name_kind)
        low = self.value(attribute)
        high = self.value(attribute, taken=(low,))
        facts = [(first, low), (second, high)]
        winner, loser = (second, first) if int(high) > int(low) else (first, second)
        self._rng.shuffle(facts)
        passage = " ".join(attribute.sentence.format(s=s, v=v) for s, v in facts)
        question = wording.format(a=first, b=second)
        return Item(identifier, site, "comparison", passage, question, winner, (loser,))


def generate(seed: int, count: int, sites: Sequence[str] = SITES) -> Iterator[Item]:
    """Yield `count` items of the declared mixture, sites in turn, the same for the same arguments."""
    rng = random.Random(seed)  # noqa: S311 - makes a task, hides nothing
    kinds, shares = zip(*KINDS.items(), strict=True)
    for index in range(count):
        (kind,) = rng.choices(kinds, shares)
        yield _Writer(rng).item(f"{seed}-{index}", sites[index % len(sites)], kind)


def normalise(text: str) -> str:
    """Lower case, letters and digits only, single spaces, with a space at both ends (for whole-word containment)."""
    return " " + " ".join(re.findall(r"[a-z0-9]+", text.lower())) + " "


def is_right(item: Item, answer: str) -> bool:
    """Say whether `answer` gives the item's answer and nothing that contradicts it.

    A value counts when its normalised words stand in the normalised answer. An answer that names another value of the
    passage as well is wrong (it lists, it does not answer), except the two names that a comparison's own question has,
    of which the first named decides. Where the passage does not give the answer, right is to say so and name no value.
    """
    text = normalise(answer)
    says_absent = _ABSENT.search(" ".join(text.split())) is not None
    named = [value for value in item.wrong_values if normalise(value) in text]
    if item.answer is None:
        return says_absent and not named
    position = text.find(normalise(item.answer))
    if position < 0 or says_absent:
        return False
    if item.kind == "comparison":
        return all(position < text.find(normalise(value)) for value in named)
    return not named


def loss(item: Item, answer: str) -> int:
    """Return the declared loss: 1 for a wrong or unsupported answer, 0 for a right one."""
    return 0 if is_right(item, answer) else 1
