"""The word lists that IFBench's checkers count by, as its instructions and program state them."""


def _words(text: str) -> list[str]:
    return text.split()


CONJUNCTIONS = frozenset(_words("and but for nor or so yet"))
NAMES = frozenset(
    _words(
        """Emma Liam Sophia Jackson Olivia Noah Ava Lucas Isabella Mason Mia Ethan Charlotte
        Alexander Amelia Benjamin Harper Leo Zoe Daniel Chloe Samuel Lily Matthew Grace Owen Abigail
        Gabriel Ella Jacob Scarlett Nathan Victoria Elijah Layla Nicholas Audrey David Hannah
        Christopher Penelope Thomas Nora Andrew Aria Joseph Claire Ryan Stella Jonathan"""
    )
)
PRONOUNS = frozenset(
    _words(
        """i me we us you he him she her it they them
        my mine our ours your yours his hers its their theirs
        myself ourselves yourself yourselves himself herself itself themselves
        this that these those who whom whose which what whoever whomever whatever whichever
        anybody anyone anything everybody everyone everything nobody nothing somebody someone
        something each either neither both all some any none"""
    )
)
CAPITALS = _words(
    """Reykjavik Helsinki Oslo Tallinn Stockholm Riga Moscow Copenhagen Vilnius Minsk Dublin Berlin
    Amsterdam Warsaw London Brussels Prague Luxembourg Paris Vienna Bratislava Budapest Vaduz
    Chisinau Bern Ljubljana Zagreb"""
)
"""Of Europe, north of 45 degrees, from north to south."""
