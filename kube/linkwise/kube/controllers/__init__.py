"""Which objects a workload's controller creates, as values: no controller runs here."""
