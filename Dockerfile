# One image for workers and web; configure it with RQSCHED_* variables.
FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY rqsched ./rqsched
RUN python -m venv /opt/rqsched \
 && /opt/rqsched/bin/pip install --no-cache-dir '.[dashboard,postgres,yaml]'

FROM python:3.12-slim
# A volume that is mounted on one of these folders for the first time becomes the user's: docker-compose.yml.
RUN useradd --uid 10001 --create-home --home-dir /app --shell /usr/sbin/nologin rqsched \
 && install --directory --owner rqsched /run/secrets/database /run/secrets/redis /run/secrets/web
COPY --from=build /opt/rqsched /opt/rqsched
ENV PATH="/opt/rqsched/bin:$PATH" PYTHONUNBUFFERED=1
# By number, so that Kubernetes sees that it is not root.
USER 10001
WORKDIR /app
# `docker stop` sends this to the supervisor, which ends its children in order.
STOPSIGNAL SIGTERM
CMD ["rqsched", "worker"]
