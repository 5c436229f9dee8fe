"""The plan of time and money: its basis, its arithmetic, its words, and how far off it was."""
