"""rqsched in web frameworks. Each module imports its framework; this package itself imports none of them."""
