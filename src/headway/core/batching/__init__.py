"""Which prompts an engine step works on, and for how long: one step, and where each word lives.

    step(engine):                                          # engine/conductor.py
        seats, KV blocks, decodes = what vLLM has          # core/views.py: Step
        allowance = budget(decodes' deadlines, model)      # budget.py; times from core/latency.py
        for prompt in backlog, parked or not:              # backlog.py, parked.py, shelf.py
            set it aside, or wake it: KV, adapter, grammar # engine/kv.py: Probe; adapters.py
        turns = classes that are owed a share              # shares.py: a bound on every wait
        for prompt in mid-prefill and waiting, by rank:    # step.py: StepPlanner._merge
            rank = (turn, order(prompt))                   # order.py: fcfs, short-first, …
            if waiting and no cap is free: pass it over    # caps.py: partial, long partial
            if waiting and no room: set it aside           # step.py: _admit, _fits
            chunk = largest that the allowance has time for # step.py: _fit; latency.largest_chunk
            allowance -= chunk                             # step.py: _spend
            if it ends the prompt: end the step in time    # step.py: _end_before_due
        plan = chunks, admitted prompts, tokens            # core/decisions.py: StepPlan
        show vLLM the plan, let it schedule, put all back  # engine/conductor.py, engine/queue.py
        learn how long the step took                       # engine/steps.py, core/latency.py

`policy.Policy` holds this together for one engine; `settings` is what an operator may set,
`clients` what a client may ask for itself. All of it is pure: no clock, no I/O, no vLLM.
"""
