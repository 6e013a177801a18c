"""What GPU sets of a machine are worth, and which set to take."""
