"""The database: opening it, and the values that it keeps about itself."""

from rqsched.kernel.store.database import Connection as Connection
from rqsched.kernel.store.database import Database as Database
from rqsched.kernel.store.database import DatabaseError as DatabaseError
from rqsched.kernel.store.database import Patience as Patience
from rqsched.kernel.store.database import sqlite_path as sqlite_path
from rqsched.kernel.store.database import with_connect_timeout as with_connect_timeout
from rqsched.kernel.store.metadata import SESSION_KEY as SESSION_KEY
from rqsched.kernel.store.metadata import Altered as Altered
from rqsched.kernel.store.metadata import claim_value as claim_value
from rqsched.kernel.store.metadata import find_altered as find_altered
from rqsched.kernel.store.metadata import find_freezes as find_freezes
from rqsched.kernel.store.metadata import find_value as find_value
from rqsched.kernel.store.metadata import remove_values as remove_values
from rqsched.kernel.store.metadata import set_value as set_value
from rqsched.kernel.store.metadata import values_under as values_under
