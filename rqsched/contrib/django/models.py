"""An empty module: rqsched has its own tables, but Django sends `post_migrate` only to apps with a module `models`."""
