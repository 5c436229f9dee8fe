"""Small games of several turns with a known optimum, to see whether credit reaches the turns."""
