"""The schema of the database: its revision, and the upgrade."""

from rqsched.kernel.store.migrations import HEAD as HEAD
from rqsched.kernel.store.schema_version import require_current as require_current
from rqsched.kernel.store.schema_version import status as status
from rqsched.kernel.store.schema_version import upgrade as upgrade
