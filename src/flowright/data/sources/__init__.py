"""Problems and preferences from the public datasets: ``registry`` has them, ``dataset`` their
types, the other modules convert rows. A dataset of a user's own needs the names here."""

from flowright.data.sources.dataset import Dataset, File, SplitPart, UpstreamRow

__all__ = ["Dataset", "File", "SplitPart", "UpstreamRow"]
