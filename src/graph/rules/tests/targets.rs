//! What workloads and others refer to.

use super::*;

fn named(kind: &str, place: &str) -> Value {
    let api_version = match kind {
        "StorageClass" => "storage.k8s.io/v1",
        "PriorityClass" => "scheduling.k8s.io/v1",
        "RuntimeClass" => "node.k8s.io/v1",
        "IngressClass" => "networking.k8s.io/v1",
        _ => "v1",
    };
    object(api_version, kind, place, json!({}))
}

/// A pod's spec that refers to something in every way.
fn pod() -> Value {
    json!({
        "serviceAccount": "sa", "priorityClassName": "prio", "runtimeClassName": "run",
        "imagePullSecrets": [{"name": "s-pull"}],
        "initContainers": [{"name": "i", "envFrom": [{"configMapRef": {"name": "c-from"}}, {"secretRef": {"name": "s-from"}}]}],
        "containers": [{"name": "m", "env": [
            {"name": "a", "valueFrom": {"configMapKeyRef": {"name": "c-key", "key": "k"}}},
            {"name": "b", "valueFrom": {"secretKeyRef": {"name": "s-key", "key": "k"}}},
            {"name": "c", "value": "c-unrelated"},
        ]}],
        "volumes": [
            {"name": "1", "configMap": {"name": "c-vol"}},
            {"name": "2", "secret": {"secretName": "s-vol"}},
            {"name": "3", "persistentVolumeClaim": {"claimName": "claim"}},
            {"name": "4", "projected": {"sources": [{"configMap": {"name": "c-pro"}}, {"secret": {"name": "s-pro"}}]}},
            {"name": "5", "ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": "class"}}}},
            {"name": "6", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "s-csi"}}},
            {"name": "7", "configMap": {"name": "c-absent"}},
            {"name": "8", "secret": {"secretName": "s-vol"}},
        ],
    })
}

const NEEDED: [&str; 16] = [
    "ConfigMap c-from",
    "ConfigMap c-key",
    "ConfigMap c-pro",
    "ConfigMap c-vol",
    "PersistentVolumeClaim claim",
    "Secret s-csi",
    "Secret s-from",
    "Secret s-key",
    "Secret s-pro",
    "Secret s-pull",
    "Secret s-vol",
    "ServiceAccount sa",
    "RuntimeClass run",
    "PriorityClass prio",
    "StorageClass class",
    "StorageClass sets",
];

fn needed() -> Vec<Value> {
    let values = NEEDED.iter().map(|text| {
        let (kind, name) = text.split_once(' ').unwrap();
        let place = if kind.ends_with("Class") { name.to_owned() } else { format!("a/{name}") };
        named(kind, &place)
    });
    values.chain([named("ConfigMap", "a/c-unrelated"), named("ConfigMap", "b/c-vol")]).collect()
}

#[test]
fn every_kind_of_workload_goes_before_what_its_pods_refer_to() {
    let template = json!({"spec": {"template": {"spec": pod()}}});
    for (api_version, kind, more) in [
        ("v1", "Pod", json!({"spec": pod()})),
        ("v1", "ReplicationController", template.clone()),
        ("apps/v1", "Deployment", template.clone()),
        ("apps/v1", "DaemonSet", template.clone()),
        ("apps/v1", "ReplicaSet", template.clone()),
        ("apps/v1", "StatefulSet", template.clone()),
        ("batch/v1", "Job", template.clone()),
        ("batch/v1", "CronJob", json!({"spec": {"jobTemplate": {"spec": {"template": {"spec": pod()}}}}})),
        ("rollouts.example.com/v1", "Rollout", template.clone()),
    ] {
        let found = World::new(needed()).and([object(api_version, kind, "a/w", more)]).edges("pod-template");
        let expected: Vec<_> =
            NEEDED.iter().filter(|n| **n != "StorageClass sets").map(|n| format!("{kind} w -> {n}")).collect();
        assert_eq!(found, expected, "{kind}");
    }
    let mut set = object("apps/v1", "StatefulSet", "a/w", template);
    set["spec"]["volumeClaimTemplates"] = json!([{"spec": {"storageClassName": "sets"}}]);
    assert_eq!(World::new(needed()).and([set]).edges("pod-template").len(), NEEDED.len());
    let none = World::new(needed()).and([object("example.com/v1", "Thing", "a/w", json!({"spec": {"template": 3}}))]);
    assert!(none.edges("pod-template").is_empty());
}

#[test]
fn nothing_waits_for_what_is_not_in_the_set() {
    let template = json!({"spec": {"template": {"spec": pod()}}});
    let graph = World::new([object("apps/v1", "Deployment", "a/w", template)]).graph();
    assert!(graph.externals().is_empty(), "{:?}", graph.externals());
}

#[test]
fn c43_what_guards_pods_goes_after_them() {
    let policy = |place: &str, selector: Value| {
        object("networking.k8s.io/v1", "NetworkPolicy", place, json!({"spec": {"podSelector": selector}}))
    };
    let budget = |place: &str, spec: Value| object("policy/v1", "PodDisruptionBudget", place, json!({"spec": spec}));
    let expression = json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]});
    let world = World::new([
        deployment("a/web", "default"),
        deployment("a/db", "default"),
        deployment("b/web", "default"),
        policy("a/all", json!({})),
        policy("a/one", json!({"matchLabels": {"app": "db"}})),
        policy("a/none", json!({"matchLabels": {"app": "x"}})),
        budget("b/some", json!({"selector": expression})),
        budget("b/nothing", json!({})),
        object("v1", "ResourceQuota", "a/quota", json!({})),
        object("v1", "LimitRange", "b/limits", json!({})),
    ]);
    assert_eq!(
        world.edges("guarded-by"),
        [
            "Deployment db -> ResourceQuota quota",
            "Deployment db -> NetworkPolicy all",
            "Deployment db -> NetworkPolicy one",
            "Deployment web -> ResourceQuota quota",
            "Deployment web -> NetworkPolicy all",
            "Deployment web -> LimitRange limits",
            "Deployment web -> PodDisruptionBudget some",
        ]
    );
}

#[test]
fn claims_autoscalers_and_ingresses_go_before_what_they_name() {
    let spec = |value: Value| json!({"spec": value});
    let backend = |name: &str| json!({"service": {"name": name, "port": {"number": 1}}});
    let ingress = json!({
        "ingressClassName": "class", "tls": [{"secretName": "cert"}], "defaultBackend": backend("default"),
        "rules": [{"http": {"paths": [
            {"backend": backend("web")},
            {"backend": {"resource": {"apiGroup": "mesh.example.com", "kind": "Mesh", "name": "mesh"}}},
            {"backend": backend("absent")},
        ]}}],
    });
    let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
    let world = World::new([
        named("StorageClass", "fast"),
        named("PersistentVolume", "v"),
        object("v1", "PersistentVolumeClaim", "a/c", spec(json!({"storageClassName": "fast", "volumeName": "v"}))),
        deployment("a/web", "default"),
        object("autoscaling/v2", "HorizontalPodAutoscaler", "a/h", spec(json!({"scaleTargetRef": target}))),
        named("IngressClass", "class"),
        named("Secret", "a/cert"),
        named("Service", "a/web"),
        named("Service", "a/default"),
        named("Service", "b/absent"),
        mesh("a/mesh"),
        object("networking.k8s.io/v1", "Ingress", "a/i", spec(ingress)),
    ]);
    assert_eq!(
        world.edges("stored-on"),
        ["PersistentVolumeClaim c -> PersistentVolume v", "PersistentVolumeClaim c -> StorageClass fast"]
    );
    assert_eq!(world.edges("scales"), ["HorizontalPodAutoscaler h -> Deployment web"]);
    assert_eq!(
        world.edges("routes-to"),
        [
            "Ingress i -> Secret cert",
            "Ingress i -> Service default",
            "Ingress i -> Service web",
            "Ingress i -> Mesh mesh",
            "Ingress i -> IngressClass class",
        ]
    );
}
