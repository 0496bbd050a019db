"""The native surface under `/api/v1/`: every operation, with the names of rqsched and of the Pipelit document."""
