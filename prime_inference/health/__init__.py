"""Node health: what a node's GPUs, NVLinks, network cards and kernel say, judged, remembered, and told.

`verdicts`, `readings`, `baselines`, `checks`, `faults`, `domain`, `cordon` are pure; `sources/` reads the node;
`agent` is the loop; `kubernetes` and `page` tell others.
"""
