"""Studies: arms, doses and seeds of training runs, planned, started, collected and compared.

Runs are processes of ``train.py``, read from their directories.
"""
