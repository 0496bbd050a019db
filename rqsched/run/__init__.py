"""The processes of a machine, and which of them watches which (docs/adr/0010).

`supervisor` keeps children alive. `worker` is `rqsched worker`: its children are a dispatcher and an `rq_worker`, or a
dispatcher and `runner`s. `dispatcher_keeper` runs beside `rq worker` (docs/adr/0013). Nothing here decides about
schedules.
"""
