{{/*
Everything below takes (dict "root" $ "name" <deployment> "deployment" <its values> "role" "prefill"|"decode").
tests/deploy feeds what it renders to the parsers of Dynamo, vLLM and LMCache.
*/}}

{{- define "prime.worker.nixl" -}}
{{- $role := ternary "kv_producer" "kv_consumer" (eq .role "prefill") -}}
{{- $nixl := dict "kv_connector" "NixlConnector" "kv_role" $role -}}
{{- if eq .deployment.device "cpu" -}}
{{- $_ := set $nixl "kv_buffer_device" "cpu" -}}
{{- $_ := set $nixl "kv_connector_extra_config" (dict "num_threads" 0) -}}
{{- end -}}
{{- toJson $nixl -}}
{{- end -}}

{{/*
The LMCache servers beside an engine: one, or one a rank where the ranks keep a replicated KV between them. Server r then has
every Nth Valkey from r on, as `up` deals them (prime_inference/local/tiers.py). Ports stay below NIXL's side channel.
*/}}
{{- define "prime.worker.lmcacheServers" -}}
{{- $worker := index .deployment .role -}}
{{- $servers := list -}}
{{- if $worker.lmcache.sharded -}}
{{- $ranks := mul (int $worker.parallel.tensor) (int $worker.parallel.prefillContext) | int -}}
{{- range $rank := until $ranks -}}
{{- $servers = append $servers (dict "name" (printf "lmcache-%d" $rank) "first" $rank "step" $ranks "port" (add 5400 (mul 10 $rank))) -}}
{{- end -}}
{{- else -}}
{{- $servers = list (dict "name" "lmcache" "first" 0 "step" 1 "port" 5555) -}}
{{- end -}}
{{- toJson $servers -}}
{{- end -}}

{{/* NIXL alone, or NIXL and a cache tier under MultiConnector: the tier rides along, NIXL answers for the hand-over. */}}
{{- define "prime.worker.transferConfig" -}}
{{- $worker := index .deployment .role -}}
{{- $nixl := include "prime.worker.nixl" . | fromJson -}}
{{- if eq $worker.tier "none" -}}
{{- toJson $nixl -}}
{{- else -}}
{{- $tier := dict -}}
{{- if eq $worker.tier "mooncake" -}}
{{- $gate := $worker.mooncake.gate -}}
{{- $tier = dict "kv_connector" "MooncakeTierConnector" "kv_role" "kv_both" "kv_connector_module_path" "prime_inference.kv.mooncake_connector" "kv_load_failure_policy" "recompute" "kv_connector_extra_config" (dict "load_async" true "prime.salt" "required" "prime.gate.bytes_per_s" $gate.bytesPerSecond "prime.gate.prefill_tokens_per_s" $gate.prefillTokensPerSecond) -}}
{{- else -}}
{{- $gate := $worker.lmcache.gate -}}
{{- $extra := dict "lmcache.mp.mq_timeout" 120.0 "lmcache.mp.heartbeat_interval" 2.0 "prime.salt" "required" "prime.gate.bytes_per_s" $gate.bytesPerSecond "prime.gate.prefill_tokens_per_s" $gate.prefillTokensPerSecond -}}
{{- $servers := include "prime.worker.lmcacheServers" . | fromJsonArray -}}
{{- if $worker.lmcache.sharded -}}
{{- $urls := list -}}
{{- range $servers }}{{- $urls = append $urls (printf "tcp://127.0.0.1:%d" (int .port)) -}}{{- end -}}
{{- $_ := set $extra "lmcache.mp.server_urls" $urls -}}
{{- $tier = dict "kv_connector" "ShardedTierConnector" "kv_connector_module_path" "prime_inference.kv.sharded_connector" -}}
{{- else -}}
{{- $_ := set $extra "lmcache.mp.host" "tcp://127.0.0.1" -}}
{{- $_ := set $extra "lmcache.mp.port" (int (first $servers).port) -}}
{{- $tier = dict "kv_connector" "TierConnector" "kv_connector_module_path" "prime_inference.kv.connector" -}}
{{- end -}}
{{- $tier = merge $tier (dict "kv_role" "kv_both" "kv_load_failure_policy" "recompute" "kv_connector_extra_config" $extra) -}}
{{- end -}}
{{- toJson (dict "kv_connector" "MultiConnector" "kv_role" $nixl.kv_role "kv_load_failure_policy" "recompute" "kv_connector_extra_config" (dict "connectors" (list $nixl $tier))) -}}
{{- end -}}
{{- end -}}

{{- define "prime.worker.args" -}}
{{- $worker := index .deployment .role -}}
{{- $p := $worker.parallel -}}
{{- $args := list "-m" (ternary "prime_inference.engine.worker" "dynamo.vllm" (eq .deployment.device "cpu")) -}}
{{- $args = concat $args (list "--model" .deployment.model.path "--served-model-name" .deployment.model.name) -}}
{{- $args = concat $args (list "--disaggregation-mode" .role "--kv-transfer-config" (include "prime.worker.transferConfig" .)) -}}
{{- $args = concat $args (list "--max-model-len" (.deployment.model.contextTokens | int64 | toString)) -}}
{{- $args = concat $args (list "--max-num-seqs" ($worker.maxSequences | int64 | toString)) -}}
{{- with $worker.maxBatchedTokens }}{{- $args = concat $args (list "--max-num-batched-tokens" (. | int64 | toString)) -}}{{- end -}}
{{- $args = concat $args (list "--block-size" ($worker.kvCache.blockTokens | int64 | toString)) -}}
{{- if ne $worker.kvCache.dtype "auto" }}{{- $args = concat $args (list "--kv-cache-dtype" $worker.kvCache.dtype) -}}{{- end -}}
{{- if eq .deployment.device "cuda" }}{{- $args = concat $args (list "--gpu-memory-utilization" (toString $worker.gpuMemoryUtilization)) -}}{{- end -}}
{{- $args = concat $args (list "--tensor-parallel-size" ($p.tensor | int64 | toString)) -}}
{{- if gt (int $p.data) 1 }}{{- $args = concat $args (list "--data-parallel-size" ($p.data | int64 | toString)) -}}{{- end -}}
{{- if gt (int $p.prefillContext) 1 }}{{- $args = concat $args (list "--prefill-context-parallel-size" ($p.prefillContext | int64 | toString)) -}}{{- end -}}
{{- if $p.expert }}{{- $args = append $args "--enable-expert-parallel" -}}{{- end -}}
{{- /* As prime_inference/engine/tool_settings.py has it. */ -}}
{{- if eq .deployment.model.parsing "gateway" }}{{- $args = concat $args (list "--dyn-structural-tag" "false") -}}{{- end -}}
{{- if eq .deployment.model.parsing "frontend" -}}
{{- $args = concat $args (list "--reasoning-parser" "glm45" "--dyn-tool-call-parser" "glm47" "--dyn-reasoning-parser" "glm45") -}}
{{- $args = concat $args (list "--dyn-structural-tag" "{\"scope\": \"always\", \"schema\": \"auto\"}") -}}
{{- end -}}
{{- if eq .role "prefill" -}}
{{- $args = concat $args (list "--kv-events-config" (dict "publisher" "zmq" "topic" "kv-events" "endpoint" "tcp://*:20080" "enable_kv_cache_events" true | toJson)) -}}
{{- end -}}
{{- concat $args $worker.extraArgs | toYaml -}}
{{- end -}}

{{- define "prime.worker.env" -}}
{{- $worker := index .deployment .role -}}
{{- $env := dict -}}
{{- $_ := set $env "VLLM_NIXL_SIDE_CHANNEL_PORT" (ternary "5600" "5700" (eq .role "prefill")) -}}
{{- $_ := set $env "VLLM_NO_USAGE_STATS" "1" -}}
{{- /* Equal on every worker, so that equal prefixes have equal block hashes. */ -}}
{{- $_ := set $env "PYTHONHASHSEED" "0" -}}
{{- $_ := set $env "HF_HUB_OFFLINE" "1" -}}
{{- $_ := set $env "TRANSFORMERS_OFFLINE" "1" -}}
{{- /* The frontend reads the model's files from the same volume. */ -}}
{{- $_ := set $env "DYN_SELF_HOST_METADATA" "0" -}}
{{- $_ := set $env "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS" "5" -}}
{{- $_ := set $env "DYN_RUNTIME_GRACEFUL_SHUTDOWN_TIMEOUT_SECS" (.deployment.drainSeconds | int64 | toString) -}}
{{- if eq .role "prefill" }}{{- $_ := set $env "DYN_PREFILL_DRAIN_TIMEOUT_S" "120" -}}{{- end -}}
{{- /* What the planner goes by: the engine tells of every forward pass. */ -}}
{{- if .deployment.planner.enabled }}{{- $_ := set $env "DYN_FORWARDPASS_METRIC_PORT" "20380" -}}{{- end -}}
{{- if $worker.kvCache.layout }}{{- $_ := set $env "VLLM_KV_CACHE_LAYOUT" $worker.kvCache.layout -}}{{- end -}}
{{- if eq .deployment.device "cuda" }}{{- $_ := set $env "PRIME_NIXL_PROGRESS_SLEEP_US" "0" -}}{{- end -}}
{{- if eq $worker.tier "mooncake" }}{{- $_ := set $env "MOONCAKE_CONFIG_PATH" "/etc/prime/mooncake/mooncake.json" -}}{{- end -}}
{{- range $key, $value := $worker.env }}{{- $_ := set $env $key (toString $value) -}}{{- end -}}
{{- range $key := keys $env | sortAlpha }}
- {name: {{ $key }}, value: {{ index $env $key | quote }}}
{{- end -}}
{{- end -}}

{{/* Takes also "server", of lmcacheServers. */}}
{{- define "prime.worker.lmcacheArgs" -}}
{{- $worker := index .deployment .role -}}
{{- $template := printf "resp://%s-lmcache-{shard}.%s.svc:6379" (include "prime.name" .root) .root.Release.Namespace -}}
{{- $shards := dict "urls" $template "shards" (int .root.Values.valkeySpec.shards) -}}
{{- if $worker.lmcache.sharded -}}
{{- $urls := list -}}
{{- range $shard := untilStep (int .server.first) (int .root.Values.valkeySpec.shards) (int .server.step) -}}
{{- $urls = append $urls ($template | replace "{shard}" (toString $shard)) -}}
{{- end -}}
{{- $shards = dict "urls" $urls -}}
{{- end -}}
{{- $port := int .server.port -}}
{{- list "-m" "prime_inference.kv.server" (toJson $shards) "--host" "127.0.0.1" "--port" (toString $port) "--http-host" "127.0.0.1" "--http-port" (add1 $port | toString) "--chunk-size" "256" "--supported-transfer-mode" "auto" "--l1-size-gb" ($worker.lmcache.l1SizeGb | toString) "--eviction-policy" "LRU" "--l2-prefetch-policy" "retain" "--prometheus-port" (add $port 2 | toString) | toYaml -}}
{{- end -}}

{{- define "prime.worker" -}}
{{- $worker := index .deployment .role -}}
{{- $root := .root -}}
- name: {{ .role }}
  type: {{ .role }}
  runtimeVersionOverride: {{ .deployment.dynamoVersion | quote }}
  replicas: {{ $worker.replicas }}
  {{- if gt (int $worker.nodes) 1 }}
  multinode: {nodeCount: {{ $worker.nodes }}}
  {{- end }}
  # /dev/shm is ours below, since the LMCache server beside the engine shares it.
  sharedMemorySize: "0"
  {{- if .deployment.planner.enabled }}
  scalingAdapter: {}
  {{- end }}
  podTemplate:
    metadata:
      labels: {{- include "prime.selector" (dict "root" .root "component" (printf "%s-%s" .name .role)) | nindent 8 }}
        prime-inference/role: {{ .role }}
        prime-inference/deployment: {{ .name }}
        prime-inference/nodes: {{ $worker.nodes | quote }}
    spec:
      {{- include "prime.pullSecrets" .root | nindent 6 }}
      # Above Dynamo's own limit for draining, so that the kubelet never ends a transfer.
      terminationGracePeriodSeconds: {{ add .deployment.drainSeconds 60 }}
      securityContext: {runAsNonRoot: true, runAsUser: 1000, runAsGroup: 1000, fsGroup: 1000, seccompProfile: {type: RuntimeDefault}}
      {{- with $worker.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $worker.tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- if .deployment.computeDomain.enabled }}
      resourceClaims:
        - {name: compute-domain-channel, resourceClaimTemplateName: {{ include "prime.name" .root }}-{{ .name }}-channel}
      {{- end }}
      {{- if eq $worker.tier "lmcache" }}
      initContainers:
        # Sidecars: they start before the engine and stop after it.
        {{- range $server := include "prime.worker.lmcacheServers" . | fromJsonArray }}
        - name: {{ $server.name }}
          image: {{ include "prime.image" (dict "root" $root "image" "engine") }}
          imagePullPolicy: {{ $root.Values.images.engine.pullPolicy }}
          restartPolicy: Always
          command: [python3]
          args: {{- include "prime.worker.lmcacheArgs" (merge (dict "server" $server) $) | nindent 12 }}
          env:
            - {name: PYTHONHASHSEED, value: "0"}
            - {name: LMCACHE_TRACK_USAGE, value: "false"}
          startupProbe: {tcpSocket: {port: {{ $server.port }}}, periodSeconds: 2, failureThreshold: 90}
          resources:
            requests: {cpu: {{ $worker.lmcache.cpu | quote }}, memory: {{ $worker.lmcache.memory }}}
            limits: {memory: {{ $worker.lmcache.memory }}}
          securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
          volumeMounts:
            - {name: shm, mountPath: /dev/shm}
        {{- end }}
      {{- end }}
      containers:
        - name: main
          image: {{ include "prime.image" (dict "root" .root "image" "engine") }}
          imagePullPolicy: {{ .root.Values.images.engine.pullPolicy }}
          command: [python3]
          args: {{- include "prime.worker.args" . | nindent 12 }}
          env: {{- include "prime.worker.env" . | nindent 12 }}
          # Weights come from a cold disk: an hour. After that only the engine's own loop counts.
          startupProbe:
            httpGet: {path: /live, port: 9090}
            periodSeconds: 10
            failureThreshold: 360
          livenessProbe:
            httpGet: {path: /live, port: 9090}
            periodSeconds: 10
            timeoutSeconds: 10
            failureThreshold: 6
          resources:
            requests:
              cpu: {{ $worker.cpu | quote }}
              memory: {{ $worker.memory }}
            limits:
              memory: {{ $worker.memory }}
              {{- if gt (int $worker.gpusPerNode) 0 }}
              nvidia.com/gpu: {{ $worker.gpusPerNode | quote }}
              {{- end }}
              {{- range $resource, $count := $worker.extraResources }}
              {{ $resource }}: {{ $count | quote }}
              {{- end }}
            {{- if .deployment.computeDomain.enabled }}
            claims: [{name: compute-domain-channel}]
            {{- end }}
          # IPC_LOCK: NIXL registers memory with the network card.
          securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL], add: [IPC_LOCK]}}
          volumeMounts:
            - {name: models, mountPath: /models, readOnly: true}
            - {name: shm, mountPath: /dev/shm}
            {{- if eq $worker.tier "mooncake" }}
            - {name: mooncake, mountPath: /etc/prime/mooncake, readOnly: true}
            {{- end }}
      volumes:
        - name: models
          persistentVolumeClaim: {claimName: {{ .deployment.model.claim }}, readOnly: true}
        - name: shm
          emptyDir: {medium: Memory, sizeLimit: {{ $worker.sharedMemory }}}
        {{- if eq $worker.tier "mooncake" }}
        - name: mooncake
          configMap: {name: {{ include "prime.name" .root }}-mooncake}
        {{- end }}
{{- end -}}
