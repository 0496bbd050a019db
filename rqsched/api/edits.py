"""Edits of a schedule in its audit events, and the update that undoes one."""

from rqsched.kernel.decide.edits import FieldUndo as FieldUndo
from rqsched.kernel.decide.edits import Undo as Undo
from rqsched.kernel.decide.edits import can_undo as can_undo
from rqsched.kernel.decide.edits import undo as undo
