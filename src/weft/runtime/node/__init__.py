"""The agent on every device: its assignment, the interpreter, and the tensors that it holds."""
