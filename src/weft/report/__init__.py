"""Output for people: tables for the terminal, pictures for files, traces for Perfetto."""
