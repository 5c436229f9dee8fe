"""Guess a number: a guess is answered by higher or lower, and by what it leaves."""

from dataclasses import dataclass, replace

from flowright.environments.games.tasks import GameRules, GameTask, Position

WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight")
HIGHEST = len(WORDS)
TURNS = 3
_MOVES = {f"{number} {word}": number for number, word in enumerate(WORDS, start=1)}
_WRITTEN = {number: move for move, number in _MOVES.items()}


@dataclass(frozen=True, slots=True)
class Search(Position):
    """The number is from ``low`` to ``high`` by the answers so far, the newest of which is
    ``answer``."""

    number: int
    low: int = 1
    high: int = HIGHEST
    answer: str = ""

    def after(self, move: str) -> "Search":
        guess = _MOVES[move]
        if guess == self.number:
            return replace(self, low=guess, high=guess, answer="found")
        if guess < self.number:
            return replace(self, low=max(self.low, guess + 1), answer="higher")
        return replace(self, high=min(self.high, guess - 1), answer="lower")

    @property
    def view(self) -> str:
        return f"{self.answer} from {_WRITTEN[self.low]} to {_WRITTEN[self.high]}".strip()

    @property
    def name(self) -> str:
        return f"{self.low} to {self.high}"

    @property
    def reward(self) -> float:
        return float(self.is_over)

    @property
    def is_over(self) -> bool:
        return self.answer == "found"


def number_game() -> GameRules:
    """Return the game. Every number is trained on and held out: all prompts are equal, and what
    differs cannot be seen. Halving what is left finds ``2 ** turns - 1`` of the numbers, and no
    other player finds more."""
    starts = [Search(number) for number in range(1, HIGHEST + 1)]
    prompt = f"Find a number in {TURNS} guesses, {starts[0].view}."
    tasks = [
        GameTask(f"number/{start.number}", "number", "games", prompt, str(start.number), start)
        for start in starts
    ]
    optimum = min(1.0, (2**TURNS - 1) / HIGHEST)
    return GameRules(TURNS, tuple(_MOVES), "write a number and its word", tasks, tasks, optimum)
