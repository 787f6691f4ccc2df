"""The types of numbers that a tensor may have, with their sizes in bytes.

A name from elsewhere (a graph file, a message) is looked up here before it is used.
"""

DTYPE_BYTES = {
    "float32": 4, "float64": 8, "float16": 2, "bfloat16": 2,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
