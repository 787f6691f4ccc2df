"""From a plan to a program: who needs which values, who has them, which messages follow, in which order."""
