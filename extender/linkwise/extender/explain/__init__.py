"""Why pods and gangs are where they are or wait, from a snapshot."""
