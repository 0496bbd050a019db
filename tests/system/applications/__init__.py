"""Small applications that run RQ already, before and after rqsched was added, and what that took."""
