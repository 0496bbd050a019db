"""Operations on every schedule that matches filters, in chunks."""

from rqsched.features.bulk.api import Bulk as Bulk
from rqsched.features.bulk.api import begin as begin
