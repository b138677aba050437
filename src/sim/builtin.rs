//! The built-in kinds, as the API server 1.36 serves them.

/// Flags of a row.
pub(super) const NAMESPACED: u8 = 1;
/// Has the subresource `status`.
pub(super) const STATUS: u8 = 2;
/// Counts changes of its spec in `metadata.generation`.
pub(super) const GENERATION: u8 = 4;
/// DELETE answers with the object, not with a Status.
pub(super) const RETURNS_OBJECT: u8 = 8;
/// A DELETE without a policy orphans the dependents.
pub(super) const ORPHANS: u8 = 16;
/// Names only have to fit into a path.
pub(super) const PATH_NAME: u8 = 32;

/// Group, version, resource, kind, flags, short names, categories.
pub(super) type Row = (&'static str, &'static str, &'static str, &'static str, u8, &'static str, &'static str);

/// Kinds that are stored, in the order of discovery. Reviews and bindings, which are only asked for, are not here.
#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    ("", "v1", "configmaps", "ConfigMap", NAMESPACED, "cm", ""),
    ("", "v1", "endpoints", "Endpoints", NAMESPACED, "ep", ""),
    ("", "v1", "events", "Event", NAMESPACED, "ev", ""),
    ("", "v1", "limitranges", "LimitRange", NAMESPACED, "limits", ""),
    ("", "v1", "namespaces", "Namespace", STATUS | RETURNS_OBJECT, "ns", ""),
    ("", "v1", "nodes", "Node", STATUS, "no", ""),
    ("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", NAMESPACED | STATUS | RETURNS_OBJECT, "pvc", ""),
    ("", "v1", "persistentvolumes", "PersistentVolume", STATUS | RETURNS_OBJECT, "pv", ""),
    ("", "v1", "pods", "Pod", NAMESPACED | STATUS | GENERATION | RETURNS_OBJECT, "po", "all"),
    ("", "v1", "podtemplates", "PodTemplate", NAMESPACED | RETURNS_OBJECT, "", ""),
    ("", "v1", "replicationcontrollers", "ReplicationController", NAMESPACED | STATUS | GENERATION | ORPHANS, "rc", "all"),
    ("", "v1", "resourcequotas", "ResourceQuota", NAMESPACED | STATUS | RETURNS_OBJECT, "quota", ""),
    ("", "v1", "secrets", "Secret", NAMESPACED, "", ""),
    ("", "v1", "serviceaccounts", "ServiceAccount", NAMESPACED | RETURNS_OBJECT, "sa", ""),
    ("", "v1", "services", "Service", NAMESPACED | STATUS | RETURNS_OBJECT, "svc", "all"),
    ("apiregistration.k8s.io", "v1", "apiservices", "APIService", STATUS, "", "api-extensions"),
    ("apps", "v1", "controllerrevisions", "ControllerRevision", NAMESPACED, "", ""),
    ("apps", "v1", "daemonsets", "DaemonSet", NAMESPACED | STATUS | GENERATION, "ds", "all"),
    ("apps", "v1", "deployments", "Deployment", NAMESPACED | STATUS | GENERATION, "deploy", "all"),
    ("apps", "v1", "replicasets", "ReplicaSet", NAMESPACED | STATUS | GENERATION, "rs", "all"),
    ("apps", "v1", "statefulsets", "StatefulSet", NAMESPACED | STATUS | GENERATION, "sts", "all"),
    ("events.k8s.io", "v1", "events", "Event", NAMESPACED, "ev", ""),
    ("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", NAMESPACED | STATUS, "hpa", "all"),
    ("batch", "v1", "cronjobs", "CronJob", NAMESPACED | STATUS | GENERATION, "cj", "all"),
    ("batch", "v1", "jobs", "Job", NAMESPACED | STATUS | GENERATION | ORPHANS, "", "all"),
    ("certificates.k8s.io", "v1", "certificatesigningrequests", "CertificateSigningRequest", STATUS, "csr", ""),
    ("networking.k8s.io", "v1", "ingressclasses", "IngressClass", GENERATION, "", ""),
    ("networking.k8s.io", "v1", "ingresses", "Ingress", NAMESPACED | STATUS | GENERATION, "ing", ""),
    ("networking.k8s.io", "v1", "ipaddresses", "IPAddress", 0, "ip", ""),
    ("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", NAMESPACED | GENERATION, "netpol", ""),
    ("networking.k8s.io", "v1", "servicecidrs", "ServiceCIDR", STATUS | GENERATION, "", ""),
    ("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", NAMESPACED | STATUS | GENERATION, "pdb", ""),
    ("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", PATH_NAME, "", ""),
    ("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", PATH_NAME, "", ""),
    ("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", NAMESPACED | PATH_NAME, "", ""),
    ("rbac.authorization.k8s.io", "v1", "roles", "Role", NAMESPACED | PATH_NAME, "", ""),
    ("storage.k8s.io", "v1", "csidrivers", "CSIDriver", 0, "", ""),
    ("storage.k8s.io", "v1", "csinodes", "CSINode", 0, "", ""),
    ("storage.k8s.io", "v1", "csistoragecapacities", "CSIStorageCapacity", NAMESPACED, "", ""),
    ("storage.k8s.io", "v1", "storageclasses", "StorageClass", 0, "sc", ""),
    ("storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment", STATUS, "", ""),
    ("storage.k8s.io", "v1", "volumeattributesclasses", "VolumeAttributesClass", 0, "vac", ""),
    ("admissionregistration.k8s.io", "v1", "mutatingadmissionpolicies", "MutatingAdmissionPolicy", GENERATION, "", "api-extensions"),
    ("admissionregistration.k8s.io", "v1", "mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding", GENERATION, "", "api-extensions"),
    ("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", GENERATION, "", "api-extensions"),
    ("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", STATUS | GENERATION, "", "api-extensions"),
    ("admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", GENERATION, "", "api-extensions"),
    ("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", GENERATION, "", "api-extensions"),
    ("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", STATUS | GENERATION, "crd,crds", "api-extensions"),
    ("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", GENERATION, "pc", ""),
    ("coordination.k8s.io", "v1", "leases", "Lease", NAMESPACED, "", ""),
    ("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", 0, "", ""),
    ("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", NAMESPACED | GENERATION, "", ""),
    ("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", GENERATION, "", ""),
    ("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", NAMESPACED | STATUS, "", ""),
    ("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate", NAMESPACED, "", ""),
    ("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", GENERATION, "", ""),
    ("flowcontrol.apiserver.k8s.io", "v1", "flowschemas", "FlowSchema", STATUS | GENERATION, "", ""),
    ("flowcontrol.apiserver.k8s.io", "v1", "prioritylevelconfigurations", "PriorityLevelConfiguration", STATUS | GENERATION, "", ""),
];
