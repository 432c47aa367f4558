{{/*
Dynamo's planner. Takes (dict "root" $ "name" <deployment> "deployment" <its values>); tests/deploy reads what it renders with
the planner's own configuration.
*/}}

{{- define "prime.planner.config" -}}
{{- $p := .deployment.planner -}}
{{- $gpus := dict -}}
{{- range $role := list "prefill" "decode" }}{{- $w := index $.deployment $role -}}{{- $_ := set $gpus $role (mul $w.nodes $w.gpusPerNode) -}}{{- end -}}
{{- dict "environment" "kubernetes" "backend" "vllm" "mode" "disagg" "model_name" .deployment.model.name
  "optimization_target" "load" "enable_load_scaling" true "enable_throughput_scaling" false "pre_deployment_sweeping_mode" "none"
  "load_adjustment_interval_seconds" (int $p.intervalSeconds)
  "max_gpu_budget" (int $p.maxGpus) "prefill_engine_num_gpu" (int $gpus.prefill) "decode_engine_num_gpu" (int $gpus.decode)
  "prefill_min_endpoint" (int $p.minReplicas.prefill) "decode_min_endpoint" (int $p.minReplicas.decode)
  "prefill_scale_up_queue_tokens" (int $p.prefillQueueTokens.up) "prefill_scale_down_queue_tokens" (int $p.prefillQueueTokens.down)
  "decode_scale_up_kv_rate" $p.decodeCachePercent.up "decode_scale_down_kv_rate" $p.decodeCachePercent.down
  | toPrettyJson -}}
{{- end -}}

{{- define "prime.planner" -}}
- name: planner
  type: planner
  runtimeVersionOverride: {{ .deployment.dynamoVersion | quote }}
  replicas: 1
  podTemplate:
    metadata:
      labels: {{- include "prime.selector" (dict "root" .root "component" (printf "%s-planner" .name)) | nindent 8 }}
        prime-inference/role: planner
        prime-inference/deployment: {{ .name }}
      annotations:
        checksum/planner: {{ include "prime.planner.config" . | sha256sum }}
    spec:
      {{- include "prime.pullSecrets" .root | nindent 6 }}
      # The operator gives it a service account that may scale; two planners would undo each other's work, so one.
      securityContext: {runAsNonRoot: true, runAsUser: 1000, runAsGroup: 1000, fsGroup: 1000, seccompProfile: {type: RuntimeDefault}}
      containers:
        - name: main
          image: {{ include "prime.image" (dict "root" .root "image" "planner") }}
          imagePullPolicy: {{ .root.Values.images.planner.pullPolicy }}
          command: [python3]
          args: [-m, dynamo.planner, --config, /etc/prime/planner/planner.json]
          resources: {{- toYaml .deployment.planner.resources | nindent 12 }}
          securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
          volumeMounts:
            - {name: planner, mountPath: /etc/prime/planner, readOnly: true}
      volumes:
        - name: planner
          configMap: {name: {{ include "prime.name" .root }}-{{ .name }}-planner}
{{- end -}}
