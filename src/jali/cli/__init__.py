"""The `jali` command. Each of its commands is a module with an entry in `jali.cli.main.COMMANDS`, imported at its first use."""
