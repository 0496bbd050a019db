"""`rqsched dev`: a whole system on this machine, with a screen of its activity."""
