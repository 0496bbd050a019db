"""Cursors of pages. A cursor belongs to one list in one order."""

from rqsched.kernel.queries.pages import PAGE_CHARACTERS as PAGE_CHARACTERS
from rqsched.kernel.queries.pages import bind_cursor as bind_cursor
from rqsched.kernel.queries.pages import malformed_cursor as malformed_cursor
from rqsched.kernel.queries.pages import read_cursor as read_cursor
from rqsched.kernel.queries.pages import read_instant as read_instant
from rqsched.kernel.queries.pages import unbind_cursor as unbind_cursor
from rqsched.kernel.queries.pages import unbind_number as unbind_number
