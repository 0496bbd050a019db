"""The deletion of a namespace, in chunks."""

from rqsched.features.namespaces.api import delete_some as delete_some
