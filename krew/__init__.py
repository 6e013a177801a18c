"""`kubectl linkwise` as krew installs it: an archive for each platform, and the manifest of all.

PyInstaller puts Python and all packages into the archive, so the user's machine needs neither
(docs/decisions/kubernetes.md#36-the-krew-archive).
"""
