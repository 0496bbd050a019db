"""`manage.py rqsched ...` and `manage.py rqsched_worker`."""
