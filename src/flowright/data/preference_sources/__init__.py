"""Preferences from the public datasets: upstream files in, pairs and rated answers out. No network,
no training files.

``registry`` has the facts, one module per family of datasets converts rows, ``reading`` reads
files.
"""

from flowright.data.preference_sources.reading import Preferences, read_pairs, read_preferences
from flowright.data.preference_sources.registry import PREFERENCES, preference_source
from flowright.data.preference_sources.source import PreferenceSource

__all__ = [
    "PREFERENCES",
    "PreferenceSource",
    "Preferences",
    "preference_source",
    "read_pairs",
    "read_preferences",
]
