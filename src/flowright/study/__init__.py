"""What a judge's bias does to the policy that it rewards: arms, doses and seeds of training runs,
planned, started, collected and compared.

Runs are runs of ``train.py`` in processes of their own; they are read from their directories. No
environment, trainer or model is imported here.
"""
