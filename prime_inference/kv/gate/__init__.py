"""Load a cached prefix, a part of it, or compute it: whichever brings the first token sooner.

estimates.py   bandwidth of a tier and prefill rate of the engine, from what loads and prefills took (pure)
decision.py    the choice, its reason and its deadline, from estimates (pure)
gate.py        one engine's gate: the estimates it keeps and the decisions it counts (pure; `now` is handed in)
"""
