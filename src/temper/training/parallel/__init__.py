"""Training on several ranks: a copy of the policy on each (data parallel), or its weights spread over them (FSDP2).

    world      who is there, what rank 0 orders, waits that end and name a rank
    team       what a trainer asks of the ranks, also where there is one
    sharded    a policy whose weights are spread
    follower   what ranks above 0 do all day

Rank 0 is the driver: it alone has engine, sandboxes, verifiers and store; it packs and deals each step's micro-batches.
The weights of their streams are shares of a global count (law 5), so gradients and losses are summed over ranks, once a
step. torch.distributed carries tensors, its store everything else, as `store.codec` writes it: nothing is pickled, and
neither torch's object collectives nor its distributed checkpoints (whose index is a pickle) are used.
All ranks see the run's directory, and trust their network, as torch.distributed does. Tensor, context and pipeline
parallelism do not live here.
"""
