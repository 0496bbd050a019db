"""`rqsched dev`: a whole system on this machine, with a screen that shows its activity."""
