"""The deletion of a namespace, a part at a time."""

from rqsched.features.namespaces.api import delete_some as delete_some
