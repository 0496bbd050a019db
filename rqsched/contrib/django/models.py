"""No models, because rqsched has its own tables. Django sends `post_migrate` only to apps that have this module."""
