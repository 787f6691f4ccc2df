"""What a user sees of a training run while it goes on.

    evaluation.py   the network on test data, with the loss and metrics of the user's own
    callbacks.py    who is told of minibatches and evaluations, and may stop the run; early stopping
    logs.py         callbacks that write CSV and TensorBoard files
    watcher.py      brings them together: takes the run's copies, remembers the best one, knows where to stop

The devices do not wait for an evaluation: it reads a copy that they have reported, in a thread of its own.
`runtime.run.train` imports this package; nothing on a node does.
"""
