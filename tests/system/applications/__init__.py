"""Small applications that already run RQ, before and after adding rqsched, and the size of the change."""
