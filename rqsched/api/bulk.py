"""Operations on every schedule that matches, a part at a time."""

from rqsched.features.bulk.api import Bulk as Bulk
from rqsched.features.bulk.api import begin as begin
