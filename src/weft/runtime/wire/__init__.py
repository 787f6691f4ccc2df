"""Messages between devices: their formats, the fabric that carries them, and sessions."""
