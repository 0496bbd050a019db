"""The idempotency keys of creates."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "rqsched_idempotency_keys",
        sa.Column("namespace", sa.String(255), nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("schedule_uid", sa.String(26), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "key", name=op.f("pk_rqsched_idempotency_keys")),
    )
    op.create_index("ix_rqsched_idempotency_keys_created_at", "rqsched_idempotency_keys", ["created_at"])
    op.create_index("ix_rqsched_idempotency_keys_schedule_uid", "rqsched_idempotency_keys", ["schedule_uid"])


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("rqsched_idempotency_keys")
