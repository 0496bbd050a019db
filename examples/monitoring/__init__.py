"""What watches rqsched: rules of alerts for Prometheus, and a dashboard of Grafana."""
