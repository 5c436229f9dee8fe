"""A trained policy at work: workflows for questions whose answers nobody knows, at the command line
and over HTTP. Nothing is judged, graded or trained here.
"""
