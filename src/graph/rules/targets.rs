//! Rules about objects that name one other: claims, autoscalers, ingresses.

use super::{
    Edges, ManifestSet, Rule,
    set::{list, text},
};
use crate::object::group_of;

/// A PersistentVolumeClaim depends on its StorageClass and on the PersistentVolume that it names; a PersistentVolume on its
/// StorageClass.
///
/// The class says who provisions and reclaims, and with which Secrets.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct StoredOn;

impl Rule for StoredOn {
    fn name(&self) -> &'static str {
        "stored-on"
    }

    fn rank(&self) -> u16 {
        500
    }

    fn infer(&self, set: &ManifestSet<'_>, edges: &mut Edges<'_>) {
        for kind in ["PersistentVolume", "PersistentVolumeClaim"] {
            for stored in set.of_kind("", kind) {
                let class = stored.text("/spec/storageClassName");
                if let Some(class) = class.and_then(|name| set.named("storage.k8s.io", "StorageClass", None, name)) {
                    edges.prefer(stored.id, class.id, "spec.storageClassName names it");
                }
                let volume = stored.text("/spec/volumeName");
                if let Some(volume) = volume.and_then(|name| set.named("", "PersistentVolume", None, name)) {
                    edges.prefer(stored.id, volume.id, "spec.volumeName names it");
                }
            }
        }
    }
}

/// A HorizontalPodAutoscaler depends on what it scales.
///
/// Deleted first, it can't scale up again what is being taken down.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Scales;

impl Rule for Scales {
    fn name(&self) -> &'static str {
        "scales"
    }

    fn rank(&self) -> u16 {
        450
    }

    fn infer(&self, set: &ManifestSet<'_>, edges: &mut Edges<'_>) {
        for scaler in set.of_kind("autoscaling", "HorizontalPodAutoscaler") {
            let at = |field: &str| scaler.text(&format!("/spec/scaleTargetRef/{field}"));
            let (Some(kind), Some(name)) = (at("kind"), at("name")) else { continue };
            let group = at("apiVersion").map_or("", group_of);
            if let Some(target) = set.named(group, kind, scaler.id.namespace(), name) {
                edges.prefer(scaler.id, target.id, "spec.scaleTargetRef names it");
            }
        }
    }
}

/// An Ingress depends on its backends (Services and others), its TLS Secrets and its IngressClass.
///
/// Deleted first, it sends nothing to backends that are going away, and the controller of its class still cleans up.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct RoutesTo;

impl Rule for RoutesTo {
    fn name(&self) -> &'static str {
        "routes-to"
    }

    fn rank(&self) -> u16 {
        400
    }

    fn infer(&self, set: &ManifestSet<'_>, edges: &mut Edges<'_>) {
        for ingress in set.of_kind("networking.k8s.io", "Ingress") {
            let namespace = ingress.id.namespace();
            let class = ingress.text("/spec/ingressClassName");
            if let Some(class) = class.and_then(|name| set.named("networking.k8s.io", "IngressClass", None, name)) {
                edges.prefer(ingress.id, class.id, "spec.ingressClassName names it");
            }
            for name in ingress.list("/spec/tls").filter_map(|tls| text(tls, "/secretName")) {
                if let Some(secret) = set.named("", "Secret", namespace, name) {
                    edges.prefer(ingress.id, secret.id, "spec.tls names it");
                }
            }
            let default = ingress.object.data.pointer("/spec/defaultBackend");
            let paths = ingress.list("/spec/rules").flat_map(|rule| list(rule, "/http/paths"));
            for backend in default.into_iter().chain(paths.filter_map(|path| path.get("backend"))) {
                let service = text(backend, "/service/name").and_then(|name| set.named("", "Service", namespace, name));
                let resource = text(backend, "/resource/kind").and_then(|kind| {
                    let group = text(backend, "/resource/apiGroup").unwrap_or_default();
                    set.named(group, kind, namespace, text(backend, "/resource/name")?)
                });
                for target in service.into_iter().chain(resource) {
                    edges.prefer(ingress.id, target.id, "it is one of its backends");
                }
            }
        }
    }
}
