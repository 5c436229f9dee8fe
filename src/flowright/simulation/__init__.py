"""The embedded server's model: an item-response simulator that answers, and judges, known tasks.

Everything that it says is simulated. ``flowright.simulation.process`` runs it as a server.
"""
