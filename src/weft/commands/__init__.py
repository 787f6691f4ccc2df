"""The commands of `weft`, by group. They parse, call the library and print."""
