"""No models: rqsched keeps its own tables. Django tells only apps with this module when `migrate` has run."""
