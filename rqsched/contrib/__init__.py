"""rqsched inside the frameworks that applications use already. Each module needs its framework; none is loaded here."""
