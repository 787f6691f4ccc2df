"""The operators that a network may use, one record each. A node calls no other functions.

A captured graph names its operators. A node looks the name up in the table and refuses a name that is not
there. Every other module reads the record: what the operator costs, how its rows and units depend on those of
its inputs, and whether it draws random numbers.

Read in this order:

- `record`: the fields of a record.
- `table`: all records. Adding an operator is one entry here, and a test.
- `flops` and `rows`: the rules that records name. A new operator often needs no new rule.
- `calls`: nodes that Weft itself writes when it splits a network.

Nothing here loads PyTorch until the function of a record is asked for, so planners may import it. This
package imports `weft.graph.network` and nothing else of `weft.graph`. The rest of `weft.graph` and the
strategies may import it.
"""
