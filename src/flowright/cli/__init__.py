"""The command ``flowright``: its subcommands, their options and what each prints."""
