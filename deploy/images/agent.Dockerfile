# The node health agent and the fleet watch. NVML's library comes from the node's driver, by the container toolkit.
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY . .
RUN python -m venv /opt/prime && /opt/prime/bin/pip install --no-cache-dir --disable-pip-version-check -c requirements/gateway.txt '.[agent]'

FROM python:3.11-slim-bookworm
COPY --from=build /opt/prime /opt/prime
ENV PATH=/opt/prime/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# The chart runs the agent as root with one capability, for the kernel log; the fleet watch runs as this user.
USER 10001:10001
EXPOSE 9464
ENTRYPOINT ["prime-inference"]
CMD ["health", "agent"]
