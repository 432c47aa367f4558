# Engines and Dynamo frontends: NVIDIA's vLLM runtime for Dynamo, the cache tiers, and this package (plugin, connectors).
# docker build -f deploy/images/engine.Dockerfile --build-arg RUNTIME=<registry>/nvidia/ai-dynamo/vllm-runtime:1.6.1 .
ARG RUNTIME=nvidia/ai-dynamo/vllm-runtime:1.6.1
FROM ${RUNTIME}
WORKDIR /src
USER 0:0
COPY . .
# Without dependencies: what the runtime has was built together, and stays as it is.
RUN python3 -m pip install --no-cache-dir --disable-pip-version-check --no-deps lmcache==0.5.5 mooncake-transfer-engine==0.3.13.post1 .
WORKDIR /
USER 1000:1000
