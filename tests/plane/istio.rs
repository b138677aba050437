//! Scenario istio-operator: an operator, its rights, its webhook and a custom resource that only it can finalize, in one
//! set. No edge is declared: rules alone have to give an order that never deadlocks.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use control_plane::{Plane, fixtures};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, Preconditions},
};
use kube_custody::{
    answer::{Answer, classify},
    custodian::Phase,
    inventory::Requirement,
    object::ObjectId,
};
use serde_json::{Value, json};

use crate::world::{self, Scene, assert_before, deletions, object};

const FINALIZER: &str = "mesh.example.com/cleanup";

/// What the set of one installation is called.
struct Mesh {
    /// The namespace of everything namespaced, which is in the set.
    place: String,
    group: String,
}

impl Mesh {
    fn of(scene: &Scene) -> Self {
        Self { place: format!("{}-mesh", scene.ns), group: format!("{}.example.com", scene.ns) }
    }

    fn cluster(&self, api_version: &str, kind: &str, name: &str, more: Value) -> DynamicObject {
        let mut value = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}});
        value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        object(value)
    }

    fn local(&self, api_version: &str, kind: &str, name: &str, more: Value) -> DynamicObject {
        let mut object = self.cluster(api_version, kind, name, more);
        object.metadata.namespace = Some(self.place.clone());
        object
    }

    /// A name in cluster scope.
    fn unique(&self, name: &str) -> String {
        format!("{}-{name}", self.place)
    }

    fn deployment(&self, name: &str) -> DynamicObject {
        let labels = json!({"app": name});
        let pod = json!({"serviceAccountName": name, "containers": [{"name": "main", "image": "none"}]});
        let template = json!({"metadata": {"labels": labels}, "spec": pod});
        let spec = json!({"selector": {"matchLabels": labels}, "template": template});
        self.local("apps/v1", "Deployment", name, json!({"spec": spec}))
    }

    /// An account and a binding of it.
    fn account(&self, name: &str, role: &str) -> [DynamicObject; 2] {
        let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role});
        let subjects = json!([{"kind": "ServiceAccount", "namespace": self.place, "name": name}]);
        let more = json!({"roleRef": role, "subjects": subjects});
        let rbac = "rbac.authorization.k8s.io/v1";
        let binding = self.cluster(rbac, "ClusterRoleBinding", &self.unique(name), more);
        [self.local("v1", "ServiceAccount", name, json!({})), binding]
    }

    fn definition(&self) -> DynamicObject {
        let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
        let spec = json!({
            "group": self.group, "scope": "Namespaced",
            "names": {"plural": "meshes", "singular": "mesh", "kind": "Mesh"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}],
        });
        let name = format!("meshes.{}", self.group);
        self.cluster("apiextensions.k8s.io/v1", "CustomResourceDefinition", &name, json!({"spec": spec}))
    }

    fn mesh(&self) -> DynamicObject {
        self.local(&format!("{}/v1", self.group), "Mesh", "mesh", json!({"spec": {}}))
    }

    /// The operator, with its rights and its webhook for the deletion of meshes.
    fn operator(&self, failure_policy: &str) -> Vec<DynamicObject> {
        let verbs = ["get", "list", "watch", "update", "patch"];
        let rules = json!([{"apiGroups": [self.group], "resources": ["meshes", "meshes/finalizers"], "verbs": verbs}]);
        let role = self.unique("operator");
        let mut set = self.account("operator", &role).to_vec();
        set.push(self.cluster("rbac.authorization.k8s.io/v1", "ClusterRole", &role, json!({"rules": rules})));
        set.push(self.deployment("operator"));
        let ports = json!([{"port": 443, "targetPort": 8443}]);
        let spec = json!({"selector": {"app": "operator"}, "ports": ports});
        set.push(self.local("v1", "Service", "hook", json!({"spec": spec})));
        set.push(self.configuration(failure_policy));
        set
    }

    fn webhook(&self) -> String {
        format!("check.{}", self.group)
    }

    fn configuration(&self, failure_policy: &str) -> DynamicObject {
        let service = json!({"namespace": self.place, "name": "hook", "path": "/"});
        let covers = ["DELETE"];
        let rules = json!([
            {"apiGroups": [self.group], "apiVersions": ["*"], "resources": ["meshes"], "operations": covers}
        ]);
        let webhook = json!({
            "name": self.webhook(), "clientConfig": {"service": service}, "rules": rules, "sideEffects": "None",
            "failurePolicy": failure_policy, "timeoutSeconds": 1, "admissionReviewVersions": ["v1"],
        });
        let (api, kind) = ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration");
        self.cluster(api, kind, &self.unique("checks"), json!({"webhooks": [webhook]}))
    }

    /// Everything, in an order of no meaning.
    fn set(&self, failure_policy: &str) -> Vec<DynamicObject> {
        let mut set = self.operator(failure_policy);
        // An administrator's workload stands by.
        set.extend(self.account("admin", "cluster-admin"));
        set.push(self.deployment("admin"));
        set.push(self.mesh());
        set.push(self.definition());
        set.push(world::namespace(&self.place));
        set
    }

    fn api(&self, client: &Client) -> Api<DynamicObject> {
        world::api_of(client, &self.mesh())
    }

    /// Puts the operator's finalizer onto the mesh, and lets the operator run: as its account, under its rights, for as
    /// long as its Deployment exists. Returns the switch that ends it.
    async fn run(&self, plane: &Plane, admin: &Client) -> Arc<AtomicBool> {
        let client = fixtures::service_account_client(plane, &self.place, "operator").await;
        let (meshes, as_admin) = (self.api(&client), self.api(admin));
        let finalizers = |list: &[&str]| Patch::Merge(json!({"metadata": {"finalizers": list}}));
        as_admin.patch("mesh", &PatchParams::default(), &finalizers(&[FINALIZER])).await.unwrap();
        fixtures::eventually("the operator's rights reach the authorizer", async || meshes.get("mesh").await.ok())
            .await;
        let (stop, admin, deployment) = (Arc::new(AtomicBool::new(false)), admin.clone(), self.deployment("operator"));
        let stopped = Arc::clone(&stop);
        tokio::spawn(async move {
            while !stopped.load(Ordering::SeqCst) && world::exists(&admin, &deployment).await {
                let deleting = meshes.get("mesh").await.is_ok_and(|m| m.metadata.deletion_timestamp.is_some());
                if deleting {
                    // Cleaning up takes its time, and its rights are needed to the end.
                    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
                    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
                    drop(meshes.patch("mesh", &PatchParams::default(), &patch).await);
                }
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        });
        stop
    }

    /// That everything went in the one order that cannot deadlock.
    fn assert_order(&self, deleted: &[String]) {
        let (place, group) = (&self.place, &self.group);
        let mesh = format!("meshes/{place}/mesh");
        let checks = format!("validatingwebhookconfigurations/{place}-checks");
        let operator = format!("deployments/{place}/operator");
        for (first, second) in [
            (mesh.as_str(), operator.as_str()),
            (&mesh, &format!("customresourcedefinitions/meshes.{group}")),
            (&checks, &format!("services/{place}/hook")),
            (&format!("services/{place}/hook"), &operator),
            (&operator, &format!("clusterrolebindings/{place}-operator")),
            (&operator, &format!("serviceaccounts/{place}/operator")),
            (&format!("clusterrolebindings/{place}-operator"), &format!("clusterroles/{place}-operator")),
            (&format!("clusterrolebindings/{place}-operator"), &format!("serviceaccounts/{place}/operator")),
            (&format!("serviceaccounts/{place}/operator"), &format!("namespaces/{place}")),
        ] {
            assert_before(deleted, first, second);
        }
    }

    async fn assert_gone(&self, scene: &Scene, set: &[DynamicObject]) {
        let left: Vec<_> = scene.present(set).await.into_iter().zip(set).filter(|(there, _)| *there).collect();
        assert!(left.is_empty(), "{left:#?}");
    }
}

/// The rules that make the mesh depend on other objects, as they are on record.
async fn on_record(scene: &Scene, mesh: &ObjectId) -> Vec<(String, String)> {
    let inventory = scene.inventory().await;
    let edges = inventory.get(mesh).unwrap().edges.iter();
    let found = edges.filter_map(|edge| match &edge.requirement {
        Requirement::Preferred { rule, .. } => {
            let to = inventory.entries().find(|e| e.id.stable_id() == edge.to)?;
            Some((rule.clone(), to.id.to_string()))
        }
        _ => None,
    });
    found.collect()
}

#[tokio::test]
async fn c12_an_operator_outlives_its_custom_resource_without_a_declared_edge() {
    let plane = Plane::shared().await;
    let scene = Scene::new("istio").await;
    let mesh = Mesh::of(&scene);
    // Nobody answers the webhook on this plane. It is ignored, so it is as good as one that always agrees.
    let set = mesh.set("Ignore");
    scene.apply(&set).await;

    let id = ObjectId::of(&mesh.mesh()).unwrap();
    let mut recorded = on_record(&scene, &id).await;
    recorded.sort();
    let place = &mesh.place;
    let expected = [
        ("covered-by-webhook", format!("ValidatingWebhookConfiguration.admissionregistration.k8s.io {place}-checks")),
        ("in-namespace", format!("Namespace {place}")),
        ("of-definition", format!("CustomResourceDefinition.apiextensions.k8s.io meshes.{}", mesh.group)),
        ("served-by", format!("Deployment.apps {place}/operator")),
    ];
    assert_eq!(recorded, expected.map(|(rule, to)| (rule.to_owned(), to)), "and not the administrator's workload");
    let roles =
        scene.log.calls_where(|c| c.head.target.plural == "clusterroles" && c.head.name() == Some("cluster-admin"));
    assert_eq!(roles.len(), 1, "a role outside of the set is read once");

    mesh.run(plane, &scene.admin).await;
    let outcome = scene.tear_down().await;
    assert!(outcome.given_up.is_empty(), "{outcome:#?}");
    let deleted = deletions(&scene.log);
    mesh.assert_order(&deleted);
    assert_before(
        &deleted,
        &format!("meshes/{place}/mesh"),
        &format!("validatingwebhookconfigurations/{place}-checks"),
    );
    mesh.assert_gone(&scene, &set).await;
}

#[tokio::test]
async fn the_order_is_found_again_when_the_record_is_taken_away() {
    let plane = Plane::shared().await;
    let scene = Scene::new("istio-lost").await;
    let mesh = Mesh::of(&scene);
    let set = mesh.set("Ignore");
    scene.apply(&set).await;
    mesh.run(plane, &scene.admin).await;
    scene.delete().await;
    let records = Api::<ConfigMap>::namespaced(scene.admin.clone(), &scene.ns);
    for record in records.list(&ListParams::default()).await.unwrap() {
        let bare = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        records.patch(&record.name_any(), &PatchParams::default(), &bare).await.unwrap();
        fixtures::delete(&records, &record.name_any()).await;
    }
    let outcome = scene.settle(&[]).await;
    assert_eq!(outcome.phase, Phase::Released, "{outcome:#?}");
    mesh.assert_order(&deletions(&scene.log));
    mesh.assert_gone(&scene, &set).await;
}

#[tokio::test]
async fn c12_control_deleted_all_at_once_the_custom_resource_stays_for_ever() {
    let plane = Plane::shared().await;
    let scene = Scene::new("istio-naive").await;
    let mesh = Mesh::of(&scene);
    let set = mesh.set("Ignore");
    for object in [world::namespace(&mesh.place), mesh.definition()].iter().chain(&set) {
        fixtures::eventually("it can be created", async || {
            let created = world::api_of(&scene.admin, object).create(&Default::default(), object).await;
            match created {
                Err(kube::Error::Api(status)) if status.reason != "AlreadyExists" => None,
                _ => Some(()),
            }
        })
        .await;
    }
    let stop = mesh.run(plane, &scene.admin).await;
    // As from a file: one DELETE after the other, in an order of no meaning, without waiting.
    for object in &set {
        world::remove(&scene.admin, object).await;
    }
    let operator = mesh.deployment("operator");
    fixtures::eventually("the operator is gone", async || {
        (!world::exists(&scene.admin, &operator).await).then_some(())
    })
    .await;
    let left = world::live(&scene.admin, &mesh.mesh()).await.expect("the mesh was to be stuck");
    assert_eq!(left.metadata.finalizers.as_deref(), Some([FINALIZER.to_owned()].as_slice()));
    assert!(left.metadata.deletion_timestamp.is_some());
    stop.store(true, Ordering::SeqCst);
    world::patch(&scene.admin, &mesh.mesh(), json!({"metadata": {"finalizers": null}})).await;
}

#[tokio::test]
async fn c48_a_webhook_whose_pods_are_gone_is_taken_out_of_the_way() {
    // Services are resolved to endpoints, of which there are none.
    let plane = Plane::builder().apiserver_flag("--enable-aggregator-routing=true").start().await.unwrap();
    let scene = Scene::on(&plane, "istio-dead", |b| b).await;
    let mesh = Mesh::of(&scene);
    let set = mesh.set("Fail");
    scene.apply(&set).await;
    mesh.run(&plane, &scene.admin).await;

    // What anybody else meets.
    let live = world::live(&scene.admin, &mesh.mesh()).await.unwrap();
    let dry = DeleteParams { dry_run: true, ..DeleteParams::default() };
    let dry = dry.preconditions(Preconditions { uid: live.metadata.uid.clone(), ..Preconditions::default() });
    let answer = fixtures::eventually("the webhook is in the way", async || {
        mesh.api(&scene.admin).delete("mesh", &dry).await.err()
    })
    .await;
    assert_eq!(classify(&answer), Answer::WebhookUnavailable { webhook: mesh.webhook() }, "{answer}");

    scene.delete().await;
    let ended = scene
        .until("the configuration gives way", &[], |outcome| {
            assert_ne!(outcome.phase, Phase::Released, "the webhook did not refuse anything");
            !outcome.removal.ended.is_empty()
        })
        .await;
    let words = ended.given_up.join("\n");
    assert!(words.contains(&mesh.webhook()) && words.contains("covered-by-webhook"), "{words}");
    let outcome = scene.settle(&[]).await;
    assert_eq!(outcome.phase, Phase::Released, "{outcome:#?}");
    let deleted = deletions(&scene.log);
    mesh.assert_order(&deleted);
    let (checks, custom) = (mesh.unique("checks"), format!("meshes/{}/mesh", mesh.place));
    assert_before(&deleted, &format!("validatingwebhookconfigurations/{checks}"), &custom);
    mesh.assert_gone(&scene, &set).await;
}
