"""The processes of a machine, and which of them watches which (docs/adr/0010).

`supervisor` keeps children alive. `worker` is `rqsched worker`, whose children are a dispatcher and `rq_worker`, or
`runner`s. `dispatcher_keeper` stands beside `rq worker` (docs/adr/0013). Nothing here decides about schedules.
"""
