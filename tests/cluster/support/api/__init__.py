"""A real control plane, the accounts on it, and what each account may do."""
