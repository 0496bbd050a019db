# One image for workers and web; configure it with RQSCHED_* variables.
FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY rqsched ./rqsched
RUN python -m venv /opt/rqsched \
 && /opt/rqsched/bin/pip install --no-cache-dir '.[dashboard,postgres]'

FROM python:3.12-slim
RUN useradd --system --create-home --home-dir /app rqsched
COPY --from=build /opt/rqsched /opt/rqsched
ENV PATH="/opt/rqsched/bin:$PATH" PYTHONUNBUFFERED=1
USER rqsched
WORKDIR /app
# `docker stop` sends this to the supervisor, which ends its children in order.
STOPSIGNAL SIGTERM
CMD ["rqsched", "worker"]
