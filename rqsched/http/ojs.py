"""The Open Job Spec surface."""

from __future__ import annotations

from fastapi import APIRouter

from .surface import Surface

SURFACE = Surface("/ojs")
router = APIRouter(prefix="/ojs", tags=["open-job-spec"])
