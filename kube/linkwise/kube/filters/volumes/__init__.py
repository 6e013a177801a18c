"""The plugins that look at a pod's PersistentVolumeClaims, each in a module of its own."""
