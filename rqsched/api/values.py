"""Ids, instants, JSON and pages: how surfaces read and write values."""

from rqsched.kernel.decide.ids import BatchJobId as BatchJobId
from rqsched.kernel.decide.ids import RunJobId as RunJobId
from rqsched.kernel.decide.ids import TargetJobId as TargetJobId
from rqsched.kernel.decide.ids import is_uid as is_uid
from rqsched.kernel.decide.ids import iso_utc as iso_utc
from rqsched.kernel.decide.ids import new_uid as new_uid
from rqsched.kernel.decide.ids import parse_run_job_id as parse_run_job_id
from rqsched.kernel.decide.ids import parse_target_job_id as parse_target_job_id
from rqsched.kernel.decide.ids import uid_to_uuid as uid_to_uuid
from rqsched.kernel.decide.ids import uuid_to_uid as uuid_to_uid
from rqsched.kernel.decide.payload import MEMO_BYTES as MEMO_BYTES
from rqsched.kernel.decide.payload import dumps as dumps
from rqsched.kernel.decide.payload import json_text as json_text
from rqsched.kernel.decide.payload import loads as loads
from rqsched.kernel.decide.results import MAX_PAGE as MAX_PAGE
from rqsched.kernel.decide.results import MOST_COUNTED as MOST_COUNTED
from rqsched.kernel.decide.results import counted as counted
from rqsched.kernel.decide.results import number_of as number_of
from rqsched.kernel.decide.results import pages as pages
from rqsched.kernel.decide.traceparent import parse_traceparent as parse_traceparent
