"""The runtime of a process, for surfaces that open one."""

from rqsched.features.list import make_runtime as make_runtime
from rqsched.kernel.chain.imports import import_workflows as import_workflows
from rqsched.kernel.chain.runtime import Runtime as Runtime
