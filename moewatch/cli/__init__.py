"""The command line: one file per command, and the only place where the rooms are put together."""
