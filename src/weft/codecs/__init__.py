"""How values are made smaller on the wire.

Read in this order:

- `base`: what a codec is. Every codec is one class in one file: `none`, `fp16`, `int8`, `int8_blocks`.
- `registry`: the codecs by name, and `coded_bytes`, with which plans count the bytes of a message.
- `times`: what coding costs a processor, and how a node measures it.
- `tensors`: from a tensor to the bytes of a message and back, with every check on what was received.

Adding a codec: write its file, and add one line to `registry.CODECS`. Every node needs the same version
of Weft, because a codec is never sent.

Plans and programs may import `registry` and `times`, which load no PyTorch. The node and its wire import
`tensors`.
This package imports nothing of Weft but `weft.errors` and `weft.dtypes`.
"""
