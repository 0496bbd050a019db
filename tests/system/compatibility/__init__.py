"""Rows and jobs as a released version wrote them are fired by this one."""
