"""Whether the application lives and can serve: for orchestrators. Neither answer tells anything else."""

from __future__ import annotations

from fastapi import APIRouter

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Say that the process answers."""
    return {"status": "ok"}
