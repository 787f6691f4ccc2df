"""An emulated fleet: its pace, the shape of its links, its processes and namespaces."""
