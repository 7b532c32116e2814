"""The `jali` command: run, measure, convert, info. Each command is a module that is imported when it is asked for."""
