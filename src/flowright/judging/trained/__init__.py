"""A trained judge: its calibration, and its scores as verdicts."""
