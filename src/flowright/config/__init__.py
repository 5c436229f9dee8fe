"""The keys of a configuration: name, type, bounds, default and meaning of each.

One YAML file becomes one frozen :class:`~flowright.config.root.Config`. All mistakes are reported
at once, one line each, as ``file: key: message``, with a suggestion for a misspelt key.
docs/configuration.md is generated from the fields (``python scripts/write_config_docs.py``).
"""
