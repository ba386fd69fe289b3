{{- define "penstock.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "penstock.fullname" -}}
{{- default (printf "%s-%s" .Release.Name (include "penstock.name" .)) .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "penstock.selector" -}}
app.kubernetes.io/name: {{ include "penstock.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "penstock.labels" -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "penstock.keySecret" -}}
{{- default (include "penstock.fullname" .) .Values.rootKey.existingSecret }}
{{- end }}

{{- /* The first name is in connection strings, and the portal and Capture connect to it. */}}
{{- define "penstock.hosts" -}}
{{- $name := include "penstock.fullname" . }}
{{- range .Values.publicHosts }}{{ . }},{{ end }}
{{- printf "%s-0.%s-pods.%s.svc,%s.%s.svc,%s,localhost" $name $name .Release.Namespace $name .Release.Namespace $name }}
{{- end }}
