"""The native surface under `/api/v1/`: every operation on a schedule, in our words and in the Pipelit document's."""
