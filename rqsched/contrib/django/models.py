"""No models: rqsched has tables of its own. Django sends `post_migrate` only to apps that have this module."""
