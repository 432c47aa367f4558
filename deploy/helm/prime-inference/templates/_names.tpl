{{- define "prime.name" -}}
{{- default .Release.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "prime.labels" -}}
app.kubernetes.io/name: prime-inference
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end -}}

{{/* (dict "root" $ "component" "gateway"): what Services and spreads select by; never changes over upgrades */}}
{{- define "prime.selector" -}}
app.kubernetes.io/name: prime-inference
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* (dict "root" $ "image" "gateway") */}}
{{- define "prime.image" -}}
{{- $image := index .root.Values.images .image -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository $image.tag -}}
{{- end -}}
{{- end -}}

{{- define "prime.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Containers that need nothing of the host. */}}
{{- define "prime.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "prime.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* A size such as 150gb or 170Gi, in MiB. Valkey's "gb" is 1024^3, as its documentation says. */}}
{{- define "prime.mebibytes" -}}
{{- $text := lower (toString .) -}}
{{- $number := regexFind "^[0-9]+" $text | int64 -}}
{{- if regexMatch "^[0-9]+(gb|gi)$" $text -}}{{ mul $number 1024 }}
{{- else if regexMatch "^[0-9]+(tb|ti)$" $text -}}{{ mul $number 1048576 }}
{{- else if regexMatch "^[0-9]+(mb|mi)$" $text -}}{{ $number }}
{{- else -}}{{ fail (printf "cannot read the size %q: write 150gb or 150Gi" (toString .)) }}
{{- end -}}
{{- end -}}

{{- /* The claim whose tokenizers the gateway compiles grammars for; empty where it enforces no tool calls. */ -}}
{{- define "prime.gateway.models" -}}
{{- range $_, $model := .Values.models }}{{- with $model.tools }}{{ .claim }} {{ end }}{{- end -}}
{{- end -}}
