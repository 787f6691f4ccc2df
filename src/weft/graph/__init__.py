"""The network as data: see README.md in this folder for what is here and in which order to read it."""
