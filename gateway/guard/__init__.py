"""What stands between a request and a deployment: the breakers, the leases and the limits of its site, in one hand.

    guards = Guards(...); await guards.follow(snapshot)     one SiteGuard a site, each with its tasks
    gate = guards.gate(...)                                 one a request
    ticket = await gate.enter(deployment, patience_s)       one an attempt: permit and grant
    ticket.correct(tokens); ticket.close(ending)            closed exactly once, whoever ends the attempt
    gate.settle(tokens); gate.headers()                     once, when the usage is known; any time

Ownership: a ticket belongs to the attempt that entered and goes with the stream that it opened; a cancelled `enter` owns
nothing. Nothing here waits for Valkey longer than the trip budget of a request.

    site_guard.py   one site's libraries and their tasks
    guards.py       the sites of the present snapshot
    gate.py         a request's way past them
    ticket.py       what an attempt holds
    doubts.py       attempts that say nothing by themselves, cleared up by a probe
    refusals.py     a refusal in OpenAI's words
"""
