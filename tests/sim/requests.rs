//! Answers that people rely on, word by word. They were taken down from a real API server.

use k8s_openapi::{
    api::core::v1::{ConfigMap, Namespace, Pod},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy},
    core::{ApiResource, GroupVersionKind},
    discovery::Discovery,
};
use kube_custody::sim::{Cluster, Controller, Fault, Trouble, Verb};
use serde_json::{Value, json};

fn maps(cluster: &Cluster) -> Api<ConfigMap> {
    Api::namespaced(cluster.client(), "default")
}

fn map(value: Value) -> ConfigMap {
    serde_json::from_value(value).unwrap()
}

fn named(name: &str) -> ConfigMap {
    map(json!({"metadata": {"name": name}}))
}

/// The `Status` of a refusal.
fn status<T: std::fmt::Debug>(result: Result<T, kube::Error>) -> kube::core::Status {
    match result {
        Err(kube::Error::Api(status)) => *status,
        other => panic!("not a refusal: {other:?}"),
    }
}

pub fn widgets_crd() -> CustomResourceDefinition {
    serde_json::from_value(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "required": ["a"], "properties": {
                        "a": {"type": "string"}, "n": {"type": "integer", "default": 3},
                        "l": {
                            "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                            "items": {"type": "object", "required": ["name"], "properties": {
                                "name": {"type": "string"}, "v": {"type": "string"},
                            }},
                        },
                    }},
                    "status": {"type": "object", "properties": {"m": {"type": "string"}}},
                }}},
            }],
        },
    }))
    .unwrap()
}

fn widgets(client: Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("example.com", "v1", "Widget");
    Api::namespaced_with(client, "default", &ApiResource::from_gvk_with_plural(&kind, "widgets"))
}

fn widget(value: Value) -> DynamicObject {
    let mut object: DynamicObject = serde_json::from_value(value).unwrap();
    object.types = Some(kube::core::TypeMeta { api_version: "example.com/v1".into(), kind: "Widget".into() });
    object
}

#[tokio::test(start_paused = true)]
async fn deletion_waits_for_finalizers() {
    let cluster = Cluster::new();
    let api = maps(&cluster);
    let held = map(json!({"metadata": {"name": "a", "finalizers": ["x.io/a"]}}));
    api.create(&PostParams::default(), &held).await.unwrap();

    let first = api.delete("a", &DeleteParams::default()).await.unwrap().left().unwrap();
    assert_eq!(first.metadata.deletion_grace_period_seconds, Some(0));
    let again = api.delete("a", &DeleteParams::default()).await.unwrap().left().unwrap();
    assert_eq!(first.metadata.resource_version, again.metadata.resource_version, "nothing was written");

    let refusal = status(api.create(&PostParams::default(), &held).await);
    assert_eq!(refusal.message, "object is being deleted: configmaps \"a\" already exists");
    let more = json!({"metadata": {"finalizers": ["x.io/a", "x.io/b"]}});
    let refusal = status(api.patch("a", &PatchParams::default(), &Patch::Merge(&more)).await);
    assert_eq!((refusal.code, refusal.details.as_ref().unwrap().causes.len()), (422, 2));
    assert_eq!(
        refusal.message,
        "ConfigMap \"a\" is invalid: metadata.finalizers: Forbidden: no new finalizers can be added if the object is \
         being deleted, found new finalizers []string{\"x.io/b\"}"
    );

    let last = json!({"metadata": {"finalizers": null, "labels": {"seen": "no"}}});
    api.patch("a", &PatchParams::default(), &Patch::Merge(&last)).await.unwrap();
    let refusal = status(api.get("a").await);
    assert_eq!((refusal.code, refusal.message.as_str()), (404, "configmaps \"a\" not found"));
}

#[tokio::test(start_paused = true)]
async fn deletion_has_preconditions_and_policies() {
    let cluster = Cluster::new();
    let api = maps(&cluster);
    let created = api.create(&PostParams::default(), &named("a")).await.unwrap();
    let uid = created.metadata.uid.clone().unwrap();
    let with = |uid: Option<&str>, version: Option<&str>| {
        let own = |text: Option<&str>| text.map(ToOwned::to_owned);
        DeleteParams::default().preconditions(Preconditions { uid: own(uid), resource_version: own(version) })
    };
    let refusal = status(api.delete("a", &with(Some("other"), None)).await);
    assert_eq!(
        refusal.message,
        format!(
            "Operation cannot be fulfilled on ConfigMap \"a\": the UID in the precondition (other) does not match the \
             UID in record ({uid}). The object might have been deleted and then recreated"
        )
    );
    assert_eq!(refusal.details.unwrap().kind, "ConfigMap");
    assert_eq!(status(api.delete("a", &with(None, Some("1"))).await).code, 409);

    // Each DELETE says anew what the garbage collector is to do.
    let finalizers = |object: ConfigMap| object.metadata.finalizers.unwrap_or_default();
    let foreground = api.delete("a", &DeleteParams::foreground()).await.unwrap().left().unwrap();
    assert_eq!(finalizers(foreground), ["foregroundDeletion"]);
    let plain = api.delete("a", &DeleteParams::default()).await.unwrap().left().unwrap();
    assert_eq!(finalizers(plain), ["foregroundDeletion"]);
    let orphan = api.delete("a", &DeleteParams::orphan()).await.unwrap().left().unwrap();
    assert_eq!(finalizers(orphan), ["orphan"]);
    let gone = api.delete("a", &DeleteParams::background()).await.unwrap().right().unwrap();
    assert_eq!(gone.details.unwrap().uid, uid);
}

#[tokio::test(start_paused = true)]
async fn pods_have_a_period_of_grace() {
    let cluster = Cluster::new();
    let pods = Api::<Pod>::namespaced(cluster.client(), "default");
    let pod = |name: &str, node: Option<&str>| -> Pod {
        let spec = json!({"containers": [{"name": "c", "image": "i"}], "nodeName": node});
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
    };
    pods.create(&PostParams::default(), &pod("nowhere", None)).await.unwrap();
    assert!(pods.delete("nowhere", &DeleteParams::default()).await.unwrap().is_left(), "answered with the pod");
    assert!(pods.get_opt("nowhere").await.unwrap().is_none());
    pods.create(&PostParams::default(), &pod("running", Some("node"))).await.unwrap();
    let dying = pods.delete("running", &DeleteParams::default()).await.unwrap().left().unwrap();
    assert_eq!(dying.metadata.deletion_grace_period_seconds, Some(30));
    pods.delete("running", &DeleteParams::default().grace_period(0)).await.unwrap();
    assert!(pods.get_opt("running").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn lists_come_in_pages_of_one_state() {
    let cluster = Cluster::new();
    let api = maps(&cluster);
    for name in ["a", "b", "c"] {
        api.create(&PostParams::default(), &named(name)).await.unwrap();
    }
    let first = api.list(&ListParams::default().limit(1)).await.unwrap();
    assert_eq!((first.items.len(), first.metadata.remaining_item_count), (1, Some(2)));
    api.delete("b", &DeleteParams::default()).await.unwrap();
    let token = first.metadata.continue_.unwrap();
    let rest = api.list(&ListParams::default().continue_token(&token)).await.unwrap();
    let names: Vec<_> = rest.items.iter().map(|map| map.metadata.name.clone().unwrap()).collect();
    assert_eq!(names, ["b", "c"], "of the state in which the list began");
    cluster.compact();
    let refusal = status(api.list(&ListParams::default().continue_token(&token)).await);
    assert_eq!((refusal.code, refusal.reason.as_str()), (410, "Expired"));
}

#[tokio::test(start_paused = true)]
async fn names_and_labels_are_checked() {
    let cluster = Cluster::new();
    let api = maps(&cluster);
    let bad = map(json!({"metadata": {
        "name": "A_b", "labels": {"a b": "c d"}, "finalizers": ["nosl"],
        "ownerReferences": [{"apiVersion": "", "kind": "", "name": "x", "uid": "u"}],
    }}));
    let refusal = status(api.create(&PostParams::default(), &bad).await);
    let fields: Vec<_> = refusal.details.unwrap().causes.into_iter().map(|cause| cause.field).collect();
    assert_eq!(
        fields,
        [
            "metadata.name",
            "metadata.labels",
            "metadata.labels",
            "metadata.ownerReferences.apiVersion",
            "metadata.ownerReferences.kind",
            "metadata.finalizers[0]"
        ]
    );
    let refusal = status(api.create(&PostParams::default(), &map(json!({"metadata": {}}))).await);
    assert_eq!(
        refusal.message,
        "ConfigMap \"\" is invalid: metadata.name: Required value: name or generateName is required"
    );
    let generated = map(json!({"metadata": {"generateName": "g-"}}));
    let created = api.create(&PostParams::default(), &generated).await.unwrap();
    assert_eq!(created.metadata.name.unwrap().len(), 7);
}

#[tokio::test(start_paused = true)]
async fn applies_own_fields() {
    let cluster = Cluster::new();
    let api = maps(&cluster);
    let data = |data: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "s"}, "data": data});
    let apply = async |manager: &str, value: Value| {
        api.patch("s", &PatchParams::apply(manager), &Patch::Apply(data(value))).await
    };
    apply("m1", json!({"a": "1", "b": "1"})).await.unwrap();
    apply("m2", json!({"a": "1"})).await.unwrap();
    let refusal = status(apply("m3", json!({"a": "2"})).await);
    assert_eq!(
        refusal.message,
        "Apply failed with 2 conflicts: conflicts with \"m1\":\n- .data.a\nconflicts with \"m2\":\n- .data.a"
    );
    // What a manager no longer mentions goes, unless another one has it.
    let applied = apply("m1", json!({})).await.unwrap();
    assert_eq!(applied.data.unwrap().into_iter().collect::<Vec<_>>(), [("a".to_owned(), "1".to_owned())]);
    let before = cluster.version();
    apply("m2", json!({"a": "1"})).await.unwrap();
    assert_eq!(cluster.version(), before, "an apply that changes nothing writes nothing");
    let with_uid = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "zz", "uid": "u"}});
    let refusal = status(api.patch("zz", &PatchParams::apply("m1"), &Patch::Apply(with_uid)).await);
    assert_eq!(
        refusal.message,
        "Operation cannot be fulfilled on configmaps \"zz\": uid mismatch: the provided object specified uid u, and no \
         existing object was found"
    );
}

#[tokio::test(start_paused = true)]
async fn custom_resources_follow_their_schema() {
    let cluster = Cluster::new();
    cluster.install(&widgets_crd()).unwrap();
    let api = widgets(cluster.client());
    let sent = json!({"metadata": {"name": "a"}, "spec": {"a": "x", "zz": 1}, "status": {"m": "q"}, "top": 1});
    let created = api.create(&PostParams::default(), &widget(sent)).await.unwrap();
    assert_eq!(created.data, json!({"spec": {"a": "x", "n": 3}}), "pruned, defaulted, without status");
    assert_eq!(created.metadata.generation, Some(1));

    let bad = json!({"metadata": {"name": "b"}, "spec": {"n": "x", "l": [{"name": "a"}, {"name": "a"}]}});
    assert_eq!(
        status(api.create(&PostParams::default(), &widget(bad)).await).message,
        "Widget.example.com \"b\" is invalid: [spec.n: Invalid value: \"string\": spec.n in body must be of type \
         integer: \"string\", spec.a: Required value, spec.l[1]: Duplicate value: {\"name\":\"a\"}]"
    );

    let both = json!({"status": {"m": "z"}, "spec": {"a": "no"}, "metadata": {"labels": {"s": "t"}}});
    let patched = api.patch_status("a", &PatchParams::default(), &Patch::Merge(&both)).await.unwrap();
    assert_eq!(patched.data, json!({"spec": {"a": "x", "n": 3}, "status": {"m": "z"}}));
    assert_eq!((patched.metadata.labels, patched.metadata.generation), (None, Some(1)));
    let spec = json!({"spec": {"a": "y"}, "status": {"m": "no"}});
    let patched = api.patch("a", &PatchParams::default(), &Patch::Merge(&spec)).await.unwrap();
    assert_eq!(patched.data, json!({"spec": {"a": "y", "n": 3}, "status": {"m": "z"}}));
    assert_eq!(patched.metadata.generation, Some(2));
    let strategic = api.patch("a", &PatchParams::default(), &Patch::Strategic(&spec)).await;
    assert_eq!(status(strategic).code, 415);
}

#[tokio::test(start_paused = true)]
async fn discovery_shows_what_is_served() {
    let cluster = Cluster::new();
    cluster.install(&widgets_crd()).unwrap();
    for discovery in [
        Discovery::new(cluster.client()).run().await.unwrap(),
        Discovery::new(cluster.client()).run_aggregated().await.unwrap(),
    ] {
        let (resource, capabilities) =
            discovery.resolve_gvk(&GroupVersionKind::gvk("example.com", "v1", "Widget")).unwrap();
        assert_eq!(resource.plural, "widgets");
        assert!(capabilities.supports_operation("deletecollection"));
        assert!(discovery.resolve_gvk(&GroupVersionKind::gvk("apps", "v1", "Deployment")).is_some());
    }
    cluster.hide_group("example.com");
    let discovery = Discovery::new(cluster.client()).run_aggregated().await.unwrap();
    assert!(!discovery.has_group("example.com"));
    assert!(widgets(cluster.client()).list(&ListParams::default()).await.is_ok(), "it is served all the same");
    let unserved = kube::core::Request::new("/apis/example.com/v2/widgets").list(&ListParams::default()).unwrap();
    let refusal = status(cluster.client().request_text(unserved).await);
    assert_eq!((refusal.code, refusal.message.trim()), (404, "404 page not found"));
}

#[tokio::test(start_paused = true)]
async fn policies_and_rights_refuse() {
    let cluster = Cluster::new();
    let api = maps(&cluster);
    for name in ["a", "b", "c", "d"] {
        let annotations = if name == "c" { json!({"keep": "yes"}) } else { json!({}) };
        let object = map(json!({"metadata": {"name": name, "annotations": annotations}}));
        api.create(&PostParams::default(), &object).await.unwrap();
    }
    cluster.deny("keep", |review| {
        let kept = review.old_object?.pointer("/metadata/annotations/keep").is_some();
        (kept && review.object.is_none()).then(|| format!("protected against {}", review.user))
    });
    let message = |name: &str| {
        format!(
            "configmaps \"{name}\" is forbidden: ValidatingAdmissionPolicy 'keep' with binding 'keep' denied request: \
             protected against admin"
        )
    };
    let refusal = status(api.delete("c", &DeleteParams::default()).await);
    assert_eq!((refusal.code, refusal.message), (422, message("c")));
    let refusal = status(api.delete_collection(&DeleteParams::default(), &ListParams::default()).await);
    assert_eq!(refusal.message, message("Unknown"));
    assert_eq!(cluster.objects("configmaps").len(), 2, "it stops at the first refusal: c and d are left");

    cluster.forbid(|user, verb, target| user == "alice" && verb == Verb::Get && target.plural == "configmaps");
    let alice: Api<ConfigMap> = Api::namespaced(cluster.client_as("alice"), "default");
    assert_eq!(
        status(alice.get("d").await).message,
        "configmaps \"d\" is forbidden: User \"alice\" cannot get resource \"configmaps\" in API group \"\" in the \
         namespace \"default\""
    );
    assert!(alice.list(&ListParams::default()).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn namespaces_take_nothing_new_and_go_when_they_are_empty() {
    let cluster = Cluster::new();
    let namespaces = Api::<Namespace>::all(cluster.client());
    let namespace = |name: &str| serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    namespaces.create(&PostParams::default(), &namespace("e")).await.unwrap();
    let inside: Api<ConfigMap> = Api::namespaced(cluster.client(), "e");
    let held = map(json!({"metadata": {"name": "held", "finalizers": ["x.io/hold"]}}));
    inside.create(&PostParams::default(), &held).await.unwrap();
    namespaces.delete("e", &DeleteParams::default()).await.unwrap();

    let refusal = status(inside.create(&PostParams::default(), &named("new")).await);
    assert_eq!(
        refusal.message,
        "configmaps \"new\" is forbidden: unable to create new content in namespace e because it is being terminated"
    );
    assert_eq!(refusal.details.unwrap().causes[0].reason, "NamespaceTerminating");
    let missing: Api<ConfigMap> = Api::namespaced(cluster.client(), "nope");
    assert_eq!(
        status(missing.create(&PostParams::default(), &named("new")).await).message,
        "namespaces \"nope\" not found"
    );
    assert_eq!(
        status(namespaces.delete("default", &DeleteParams::default()).await).message,
        "namespaces \"default\" is forbidden: this namespace may not be deleted"
    );

    cluster.run_controllers();
    let waiting = cluster.object("namespaces", "", "e").unwrap();
    let message = |kind: &str| {
        let conditions = waiting["status"]["conditions"].as_array().unwrap().iter();
        conditions.filter(|c| c["type"] == kind).map(|c| c["message"].as_str().unwrap().to_owned()).collect::<String>()
    };
    assert_eq!(
        message("NamespaceContentRemaining"),
        "Some resources are remaining: configmaps. has 1 resource instances"
    );
    assert_eq!(
        message("NamespaceFinalizersRemaining"),
        "Some content in the namespace has finalizers remaining: x.io/hold in 1 resource instances"
    );
    let release = json!({"metadata": {"finalizers": null}});
    inside.patch("held", &PatchParams::default(), &Patch::Merge(&release)).await.unwrap();
    cluster.run_controllers();
    assert!(cluster.object("namespaces", "", "e").is_none());
    assert!(cluster.elapsed().as_secs() >= 5, "a namespace is left alone for five seconds");
}

#[tokio::test(start_paused = true)]
async fn definitions_go_after_their_objects() {
    let cluster = Cluster::new();
    cluster.install(&widgets_crd()).unwrap();
    let api = widgets(cluster.client());
    let held = widget(json!({"metadata": {"name": "held", "finalizers": ["x.io/hold"]}, "spec": {"a": "x"}}));
    api.create(&PostParams::default(), &held).await.unwrap();
    // No policy is asked about objects that go with their definition.
    cluster.deny("keep", |review| (review.plural == "widgets" && review.object.is_none()).then(|| "no".to_owned()));
    let crds = Api::<CustomResourceDefinition>::all(cluster.client());
    let deleted = crds.delete("widgets.example.com", &DeleteParams::default()).await.unwrap().left().unwrap();
    assert_eq!(deleted.metadata.finalizers.unwrap(), ["customresourcecleanup.apiextensions.k8s.io"]);
    let another = widget(json!({"metadata": {"name": "new"}, "spec": {"a": "x"}}));
    assert_eq!(
        status(api.create(&PostParams::default(), &another).await).message,
        "widgets.example.com \"new\" is forbidden: create not allowed while custom resource definition is terminating"
    );
    cluster.run_controllers();
    assert!(api.get("held").await.unwrap().metadata.deletion_timestamp.is_some());
    let release = json!({"metadata": {"finalizers": null}});
    api.patch("held", &PatchParams::default(), &Patch::Merge(&release)).await.unwrap();
    cluster.run_controllers();
    let refusal = status(api.get("held").await);
    assert_eq!((refusal.code, refusal.reason.as_str()), (404, "Failed to parse error data"), "plain text");
}

#[tokio::test(start_paused = true)]
async fn faults_happen_as_planned() {
    let cluster = Cluster::new();
    let api = maps(&cluster);
    for name in ["a", "b", "c"] {
        api.create(&PostParams::default(), &named(name)).await.unwrap();
    }
    cluster.inject(Fault::new(Trouble::Refused(429)).verb(Verb::Get).name("b").nth(2));
    assert!(api.get("b").await.is_ok());
    assert_eq!(status(api.get("b").await).code, 429);
    assert!(api.get("b").await.is_ok());

    cluster.inject(Fault::new(Trouble::AnswerLost).verb(Verb::Delete));
    assert!(matches!(api.delete("a", &DeleteParams::default()).await, Err(kube::Error::Service(_))));
    assert!(api.get_opt("a").await.unwrap().is_none(), "it was carried out");
    cluster.inject(Fault::new(Trouble::Stale(1)).verb(Verb::List));
    assert_eq!(api.list(&ListParams::default()).await.unwrap().items.len(), 3, "a is still in it");
    cluster.inject(Fault::new(Trouble::Repeated).verb(Verb::Create));
    assert_eq!(status(api.create(&PostParams::default(), &named("d")).await).reason, "AlreadyExists");

    let client = cluster.client();
    let mine: Api<ConfigMap> = Api::namespaced(client, "default");
    cluster.inject(Fault::new(Trouble::CrashAfter).verb(Verb::Create));
    let hour = std::time::Duration::from_secs(3600);
    let (params, object) = (PostParams::default(), named("e"));
    assert!(tokio::time::timeout(hour, mine.create(&params, &object)).await.is_err());
    assert!(api.get("e").await.is_ok(), "carried out; other clients live");
    assert!(tokio::time::timeout(hour, mine.get("e")).await.is_err(), "the client is dead for good");
}

#[tokio::test(start_paused = true)]
async fn one_seed_gives_one_history() {
    let run = async |seed| {
        let cluster = Cluster::builder().seed(seed).build();
        let namespaces = Api::<Namespace>::all(cluster.client());
        let namespace = serde_json::from_value(json!({"metadata": {"name": "n"}})).unwrap();
        namespaces.create(&PostParams::default(), &namespace).await.unwrap();
        let api: Api<ConfigMap> = Api::namespaced(cluster.client(), "n");
        let owner = api.create(&PostParams::default(), &named("owner")).await.unwrap();
        for name in ["a", "b", "c"] {
            let owners = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.metadata.uid}]);
            let child = map(json!({"metadata": {"name": name, "ownerReferences": owners}}));
            api.create(&PostParams::default(), &child).await.unwrap();
        }
        let delete = DeleteParams { propagation_policy: Some(PropagationPolicy::Foreground), ..Default::default() };
        api.delete("owner", &delete).await.unwrap();
        namespaces.delete("n", &DeleteParams::default()).await.unwrap();
        let steps: Vec<_> = cluster.run_controllers().iter().map(ToString::to_string).collect();
        assert!(cluster.object("namespaces", "", "n").is_none());
        (steps, cluster.audit().to_string())
    };
    assert_eq!(run(1).await, run(1).await);
    assert_ne!(run(1).await.0, run(2).await.0);
}

#[tokio::test(start_paused = true)]
async fn controllers_can_be_paused_and_stepped() {
    let cluster = Cluster::new();
    let api = maps(&cluster);
    let orphan = map(json!({"metadata": {"name": "a", "ownerReferences": [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "never"},
    ]}}));
    cluster.run_controllers();
    api.create(&PostParams::default(), &orphan).await.unwrap();
    cluster.pause(Controller::GarbageCollector);
    assert!(cluster.run_controllers().is_empty());
    let step = cluster.step_of(Controller::GarbageCollector).unwrap();
    assert_eq!(step.to_string(), "garbage collector: take in ConfigMap default/a");
    assert_eq!(cluster.gc_nodes(), 6, "four namespaces, the object, and the owner that is only referred to");
    cluster.resume(Controller::GarbageCollector);
    cluster.run_controllers();
    assert!(cluster.objects("configmaps").is_empty());
}
