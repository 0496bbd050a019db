"""The processes of a machine, and how they watch each other (docs/adr/0010).

`supervisor` keeps children alive. `worker` is the command `rqsched worker`. Its children are a dispatcher and an
`rq_worker`, or a dispatcher and `runner`s. `dispatcher_keeper` keeps a dispatcher beside `rq worker` (docs/adr/0013).
Nothing here decides about schedules.
"""
