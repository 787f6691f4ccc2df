"""What people look at: tables for the terminal, pictures for files, traces for Perfetto."""
