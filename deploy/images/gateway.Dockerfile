# The gateway alone. From the repository's root: docker build -f deploy/images/gateway.Dockerfile .
# With `--build-arg EXTRAS=gateway,otel` it can send spans (gateway.settings.otlpEndpoint in the chart).
# With `--build-arg EXTRAS=gateway,toolcalls` it can enforce tool calls (models.*.tools in the chart). That brings torch: name a
# CPU build's index by `--build-arg PIP_EXTRA_INDEX_URL=..`, or it comes with CUDA.
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY . .
ARG EXTRAS=gateway
ARG PIP_EXTRA_INDEX_URL
RUN python -m venv /opt/prime && /opt/prime/bin/pip install --no-cache-dir --disable-pip-version-check -c requirements/gateway.txt -c requirements/toolcalls.txt -c requirements/otel.txt ".[${EXTRAS:-gateway}]"

FROM python:3.11-slim-bookworm
COPY --from=build /opt/prime /opt/prime
ENV PATH=/opt/prime/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# A number, so that Kubernetes can see that it is not root.
USER 10001:10001
EXPOSE 8000 8001
ENTRYPOINT ["prime-inference"]
CMD ["gateway"]
