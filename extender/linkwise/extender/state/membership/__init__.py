"""Of which gang each pod is, once the objects that it hangs on are read."""
