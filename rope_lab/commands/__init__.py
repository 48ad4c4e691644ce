"""One module per `rope-lab` command, each with `add_arguments` and `run`; the first line of its docstring is its help."""
