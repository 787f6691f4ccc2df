"""From a plan to a program: which device needs which values, which has them, and which messages follow in
which order."""
