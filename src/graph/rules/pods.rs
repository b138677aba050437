//! Pod templates: who runs them, as whom, and what they need.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    Edges, Manifest, ManifestSet, Rule,
    set::{list, text},
};
use crate::object::ObjectId;

/// Something that runs pods.
#[derive(Clone, Copy, Debug)]
pub(super) struct Workload<'a> {
    pub(super) manifest: Manifest<'a>,
    /// The spec of its pods.
    spec: &'a Value,
    labels: Option<&'a Value>,
}

impl<'a> Workload<'a> {
    /// Pods, the kinds that have a pod template, and custom resources that have one where Deployments have it.
    pub(super) fn of(manifest: Manifest<'a>) -> Option<Self> {
        let data = &manifest.object.data;
        let template = match (manifest.id.group(), manifest.id.kind()) {
            ("", "Pod") => return Some(Self { manifest, spec: data.get("spec")?, labels: None }),
            ("batch", "CronJob") => data.pointer("/spec/jobTemplate/spec/template")?,
            _ => data.pointer("/spec/template")?,
        };
        let spec = template.get("spec").filter(|spec| spec.get("containers").is_some_and(Value::is_array))?;
        Some(Self { manifest, spec, labels: Some(template.pointer("/metadata/labels").unwrap_or(&Value::Null)) })
    }

    pub(super) fn id(&self) -> &'a ObjectId {
        self.manifest.id
    }

    /// The ServiceAccount of its pods.
    pub(super) fn account(&self) -> &'a str {
        // The second name is the deprecated one.
        text(self.spec, "/serviceAccountName").or_else(|| text(self.spec, "/serviceAccount")).unwrap_or("default")
    }

    /// The labels of its pods.
    pub(super) fn pod_labels(&self) -> BTreeMap<String, String> {
        match self.labels {
            None => self.manifest.labels().clone(),
            Some(labels) => {
                let labels = labels.as_object().into_iter().flatten();
                labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
            }
        }
    }

    /// What its pods refer to: kind, name, and the place in the pod's spec.
    fn references(&self) -> Vec<(Target, &'a str, &'static str)> {
        let mut found = vec![(Target::ServiceAccount, self.account(), "serviceAccountName")];
        let mut add = |target, at: &'a Value, pointer: &str, place| {
            found.extend(text(at, pointer).map(|name| (target, name, place)));
        };
        add(Target::PriorityClass, self.spec, "/priorityClassName", "priorityClassName");
        add(Target::RuntimeClass, self.spec, "/runtimeClassName", "runtimeClassName");
        for secret in list(self.spec, "/imagePullSecrets") {
            add(Target::Secret, secret, "/name", "imagePullSecrets");
        }
        let containers = ["/initContainers", "/containers", "/ephemeralContainers"];
        for container in containers.into_iter().flat_map(|kind| list(self.spec, kind)) {
            for source in list(container, "/envFrom") {
                add(Target::ConfigMap, source, "/configMapRef/name", "envFrom");
                add(Target::Secret, source, "/secretRef/name", "envFrom");
            }
            for variable in list(container, "/env") {
                add(Target::ConfigMap, variable, "/valueFrom/configMapKeyRef/name", "env");
                add(Target::Secret, variable, "/valueFrom/secretKeyRef/name", "env");
            }
        }
        for volume in list(self.spec, "/volumes") {
            add(Target::ConfigMap, volume, "/configMap/name", "volumes");
            add(Target::Secret, volume, "/secret/secretName", "volumes");
            add(Target::Claim, volume, "/persistentVolumeClaim/claimName", "volumes");
            let class = "/ephemeral/volumeClaimTemplate/spec/storageClassName";
            add(Target::StorageClass, volume, class, "volumes");
            for source in list(volume, "/projected/sources") {
                add(Target::ConfigMap, source, "/configMap/name", "volumes");
                add(Target::Secret, source, "/secret/name", "volumes");
            }
            // Credentials of storage drivers.
            for secret in ["/csi/nodePublishSecretRef/name", "/cephfs/secretRef/name", "/flexVolume/secretRef/name"] {
                add(Target::Secret, volume, secret, "volumes");
            }
            for secret in ["/iscsi/secretRef/name", "/rbd/secretRef/name", "/scaleIO/secretRef/name"] {
                add(Target::Secret, volume, secret, "volumes");
            }
            for secret in ["/storageos/secretRef/name", "/azureFile/secretName"] {
                add(Target::Secret, volume, secret, "volumes");
            }
        }
        for claim in self.manifest.list("/spec/volumeClaimTemplates") {
            add(Target::StorageClass, claim, "/spec/storageClassName", "volumeClaimTemplates");
        }
        found
    }
}

/// Workloads by the labels of their pods.
pub(super) struct PodIndex<'s, 'a> {
    by_label: BTreeMap<(&'a str, String, String), Vec<&'s Workload<'a>>>,
    by_namespace: BTreeMap<&'a str, Vec<&'s Workload<'a>>>,
}

impl<'s, 'a> PodIndex<'s, 'a> {
    pub(super) fn of(set: &'s ManifestSet<'a>) -> Self {
        let mut this = Self { by_label: BTreeMap::new(), by_namespace: BTreeMap::new() };
        for workload in set.workloads() {
            let Some(namespace) = workload.id().namespace() else { continue };
            for (key, value) in workload.pod_labels() {
                this.by_label.entry((namespace, key, value)).or_default().push(workload);
            }
            this.by_namespace.entry(namespace).or_default().push(workload);
        }
        this
    }

    /// Workloads of a namespace whose pods have all of these labels, in order of identity. Looks at those only that share
    /// the rarest label.
    pub(super) fn with_labels(
        &self,
        namespace: Option<&str>,
        labels: &BTreeMap<&str, &str>,
    ) -> impl Iterator<Item = &'s Workload<'a>> + use<'s, 'a> {
        let namespace = namespace.unwrap_or_default();
        let all = self.by_namespace.get(namespace);
        let with = labels.iter().map(|(k, v)| self.by_label.get(&(namespace, (*k).to_owned(), (*v).to_owned())));
        let rarest = with.chain([all]).min_by_key(|found| found.map_or(0, Vec::len)).flatten();
        let has_all = |workload: &&&'s Workload<'a>| {
            let found = workload.pod_labels();
            labels.iter().all(|(key, value)| found.get(*key).is_some_and(|v| v == value))
        };
        rarest.into_iter().flatten().filter(has_all).copied().collect::<Vec<_>>().into_iter()
    }
}

/// What a pod can refer to by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    ServiceAccount,
    Secret,
    ConfigMap,
    Claim,
    StorageClass,
    PriorityClass,
    RuntimeClass,
}

impl Target {
    fn id(self, namespace: Option<&str>, name: &str) -> Option<ObjectId> {
        let (group, kind, namespaced) = match self {
            Self::ServiceAccount => ("", "ServiceAccount", true),
            Self::Secret => ("", "Secret", true),
            Self::ConfigMap => ("", "ConfigMap", true),
            Self::Claim => ("", "PersistentVolumeClaim", true),
            Self::StorageClass => ("storage.k8s.io", "StorageClass", false),
            Self::PriorityClass => ("scheduling.k8s.io", "PriorityClass", false),
            Self::RuntimeClass => ("node.k8s.io", "RuntimeClass", false),
        };
        ObjectId::new(group, kind, namespace.filter(|_| namespaced), name).ok()
    }
}

/// A workload depends on what its pods refer to: ServiceAccount, Secrets, ConfigMaps, claims, classes.
///
/// New pods are refused or hang without them, and pods that still run need what they mount and who they are until they
/// end. References are those of volumes (projected and ephemeral ones included), `env`, `envFrom`, `imagePullSecrets`,
/// `volumeClaimTemplates` and the class names. Workloads are Pods, the built-in kinds with a pod template, and custom
/// resources with one at `spec.template`.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct PodTemplate;

impl Rule for PodTemplate {
    fn name(&self) -> &'static str {
        "pod-template"
    }

    fn rank(&self) -> u16 {
        750
    }

    fn infer(&self, set: &ManifestSet<'_>, edges: &mut Edges<'_>) {
        for workload in set.workloads() {
            let from = workload.id();
            let mut references = workload.references();
            // One edge for each object, whatever number of places names it.
            references.sort_unstable();
            references.dedup_by_key(|(target, name, _)| (*target, *name));
            for (target, name, place) in references {
                if let Some(to) = target.id(from.namespace(), name) {
                    edges.prefer_within(from, &to, format!("its pods name it in {place}"));
                }
            }
        }
    }
}
