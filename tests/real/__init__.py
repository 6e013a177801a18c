"""Public inputs with the right answer beside each: see `answers.yaml`. They are not part of the
project, so the folder that holds them is an argument of `python -m tests.real`."""
