"""Simple requests to hang instructions on: kinds of text times subjects, and questions that yes or
no answers. Written for this project; none is of a benchmark.
"""

_TEXTS = (
    "Write a short letter to a friend about {}.",
    "Write an email to a neighbour about {}.",
    "Write a diary entry about {}.",
    "Write a short story about {}.",
    "Write a poem about {}.",
    "Write a song about {}.",
    "Write a blog post about {}.",
    "Write a brief news report about {}.",
    "Write a speech for a small audience about {}.",
    "Write a dialogue between two sisters about {}.",
    "Write a page of advice about {}.",
    "Write an invitation that has to do with {}.",
    "Write a scene for a radio play about {}.",
    "Write a note for the kitchen door about {}.",
    "Write the opening of a novel about {}.",
    "Explain to a child what there is to know about {}.",
    "Describe what can go wrong with {}.",
    "Give some tips about {}.",
    "Make a plan for the week that leaves room for {}.",
    "Tell a funny anecdote about {}.",
    "Compare two ways to think about {}.",
    "Say why somebody might care about {}.",
    "Draft a small advertisement that mentions {}.",
    "Summarise what a beginner should know about {}.",
)
_SUBJECTS = (
    "a lost umbrella",
    "the first day at a new job",
    "growing tomatoes on a balcony",
    "a night train through the mountains",
    "an old bicycle",
    "learning to swim as a grown-up",
    "a broken kettle",
    "a walk along the harbour",
    "baking bread at home",
    "a birthday in the rain",
    "the sound of an empty school",
    "keeping bees in a town",
    "moving to a smaller flat",
    "a chess game between strangers",
    "repairing a wooden chair",
    "a library that opens at midnight",
    "saving money for a journey",
    "a dog that is afraid of stairs",
    "the last bus of the evening",
    "planting a tree with children",
    "a market on a winter morning",
    "writing with a fountain pen",
    "a bridge that is being built",
    "cooking soup for twelve people",
    "a map with a mistake in it",
    "cleaning out the attic",
    "watching birds from a window",
    "a power cut in summer",
    "a choir that cannot find a singer",
    "sharing a garden with others",
)
_QUESTIONS = (
    "Is it a good idea to {}?",
    "Should somebody with little time {}?",
    "Would you advise a student to {}?",
    "Can it make a person happier to {}?",
)
_DEEDS = (
    "keep a diary",
    "drink coffee in the evening",
    "learn two languages at once",
    "buy a used car",
    "walk to work every day",
    "get up before sunrise",
    "share a kitchen with friends",
    "read the end of a book first",
    "sell an old piano",
    "work through the lunch break",
    "take the stairs to the ninth floor",
    "adopt a second cat",
    "travel without a phone",
    "paint a room black",
    "move to an island",
)


def requests() -> list[str]:
    return [text.format(subject) for text in _TEXTS for subject in _SUBJECTS]


def questions() -> list[str]:
    """What yes, no or maybe answers."""
    return [question.format(deed) for question in _QUESTIONS for deed in _DEEDS]
