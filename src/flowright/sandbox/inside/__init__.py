"""Code of the isolated processes. Started as a program, never imported by the trusted side.

``zygote``, which ``__main__`` begins; ``isolation``, ``seccomp``, ``kernel`` its restraints and
``probe`` their test; ``solution`` and ``suite`` the two sides of a check, ``codec`` the messages
between them.
"""
