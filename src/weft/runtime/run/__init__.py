"""One run, seen from where the user typed: the crew, the coordinator, feeding, records, results."""
