"""SQL: tables, migrations, and functions that are each a step of a transaction. All SQL of rqsched is here."""
