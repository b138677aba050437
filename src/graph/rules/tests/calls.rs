//! Webhooks and aggregated APIs.

use super::*;

fn service(place: &str, app: &str) -> Value {
    object("v1", "Service", place, json!({"spec": {"selector": {"app": app}}}))
}

/// A validating configuration with one webhook.
fn configuration(service: &str, more: Value) -> Value {
    let (namespace, name) = service.split_once('/').unwrap();
    let mut webhook = json!({
        "name": "check.mesh.example.com",
        "clientConfig": {"service": {"namespace": namespace, "name": name}},
        "rules": [{"apiGroups": ["mesh.example.com"], "apiVersions": ["v1"], "resources": ["meshes"], "operations": ["DELETE"]}],
    });
    for (key, field) in more.as_object().into_iter().flatten() {
        webhook[key] = field.clone();
    }
    let webhooks = json!({"webhooks": [webhook]});
    object("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "checks", webhooks)
}

fn covered(more: Value) -> Vec<String> {
    let labelled = object("mesh.example.com/v1", "Mesh", "app/labelled", json!({"labels": {"check": "yes"}}));
    let namespace = object("v1", "Namespace", "app", json!({"labels": {"team": "a"}}));
    let set = [namespace, labelled, mesh("other/plain"), mesh("cluster"), configuration("ops/s", more)];
    let found = World::new(set).edges("covered-by-webhook");
    found.iter().map(|edge| edge.split(" -> ").next().unwrap().to_owned()).collect()
}

fn rule(groups: &[&str], resources: &[&str], operations: &[&str], scope: &str) -> Value {
    json!([{"apiGroups": groups, "apiVersions": ["*"], "resources": resources, "operations": operations, "scope": scope}])
}

#[test]
fn what_a_webhook_covers_goes_before_its_configuration() {
    let meshes = ["Mesh cluster", "Mesh labelled", "Mesh plain"];
    assert_eq!(covered(json!({})), meshes);
    let by_rule = |groups: &[&str], resources: &[&str], operations: &[&str], scope: &str| {
        covered(json!({"rules": rule(groups, resources, operations, scope)}))
    };
    assert_eq!(by_rule(&["mesh.example.com"], &["meshes"], &["CREATE"], "*"), meshes);
    assert_eq!(by_rule(&["mesh.example.com"], &["meshes/*"], &["UPDATE"], "*"), meshes);
    assert_eq!(by_rule(&["mesh.example.com"], &["*"], &["*"], "Cluster"), ["Mesh cluster"]);
    assert_eq!(by_rule(&["*"], &["*/*"], &["*"], "Namespaced"), ["Mesh labelled", "Mesh plain"]);
    assert_eq!(by_rule(&["", "mesh.example.com"], &["*"], &["DELETE"], "*").len(), 4, "and the Namespace");
    assert!(by_rule(&["mesh.example.com"], &["meshes/status"], &["*"], "*").is_empty());
    assert!(by_rule(&["mesh.example.com"], &["gateways"], &["*"], "*").is_empty());
    assert!(by_rule(&["apps"], &["*"], &["*"], "*").is_empty());
    assert!(by_rule(&["mesh.example.com"], &["meshes"], &["CONNECT"], "*").is_empty());
}

#[test]
fn selectors_confine_a_webhook_as_far_as_the_set_tells() {
    assert_eq!(covered(json!({"objectSelector": {"matchLabels": {"check": "yes"}}})), ["Mesh labelled"]);
    let by_namespace = |selector: Value| covered(json!({"namespaceSelector": selector}));
    // The labels of Namespace "other" are not known, and cluster scope is never left out.
    assert_eq!(by_namespace(json!({"matchLabels": {"team": "b"}})), ["Mesh cluster", "Mesh plain"]);
    assert_eq!(
        by_namespace(json!({"matchLabels": {"kubernetes.io/metadata.name": "app"}})),
        ["Mesh cluster", "Mesh labelled"]
    );
    assert_eq!(
        by_namespace(json!({"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]})),
        ["Mesh cluster", "Mesh plain"]
    );
    let namespaces = rule(&[""], &["namespaces"], &["*"], "*");
    let of_itself =
        |team: &str| covered(json!({"rules": namespaces, "namespaceSelector": {"matchLabels": {"team": team}}})).len();
    assert_eq!((of_itself("a"), of_itself("b")), (1, 0), "a Namespace is matched by its own labels");
}

/// A webhook for everything whose Service, workload and so on are in the set.
fn webhook_for_everything() -> World {
    World::new([
        object("v1", "Namespace", "ops", json!({})),
        service("ops/hook", "operator"),
        deployment("ops/operator", "operator"),
        account("ops/operator"),
        deployment("ops/other", "default"),
        configuration("ops/hook", json!({"rules": rule(&["*"], &["*"], &["*"], "*")})),
    ])
}

#[test]
fn c48_c55_a_webhook_configuration_never_outlives_what_answers_it() {
    let world = webhook_for_everything();
    assert_eq!(
        world.edges("answered-by"),
        [
            "Service hook -> Deployment operator",
            "ValidatingWebhookConfiguration checks -> Namespace ops",
            "ValidatingWebhookConfiguration checks -> Service hook",
        ]
    );
    // What it needs itself cannot wait for it; everything else can.
    assert_eq!(world.edges("covered-by-webhook"), ["Deployment other -> ValidatingWebhookConfiguration checks"]);
    let graph = world.graph();
    let order: Vec<_> = graph.deletion_order().into_iter().map(|n| graph.id(n).kind().to_owned()).collect();
    assert_eq!(
        order,
        ["Deployment", "ValidatingWebhookConfiguration", "Service", "Deployment", "ServiceAccount", "Namespace"]
    );
    // The Service may be somebody else's, the Namespace still holds it.
    let without = World::new([object("v1", "Namespace", "ops", json!({})), configuration("ops/hook", json!({}))]);
    assert_eq!(without.edges("answered-by"), ["ValidatingWebhookConfiguration checks -> Namespace ops"]);
}

#[test]
fn only_services_that_the_api_server_calls_wait_for_their_workloads() {
    let world = World::new([service("ops/peers", "operator"), deployment("ops/operator", "operator")]);
    assert!(world.edges("answered-by").is_empty());
    let mut definition = object(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        "meshes.mesh.example.com",
        json!({
            "spec": {"group": "mesh.example.com", "names": {"kind": "Mesh", "plural": "meshes"}},
        }),
    );
    definition["spec"]["conversion"] = json!({
        "strategy": "Webhook", "webhook": {"clientConfig": {"service": {"namespace": "ops", "name": "peers"}}},
    });
    assert_eq!(
        world.and([definition]).edges("answered-by"),
        ["Service peers -> Deployment operator", "CustomResourceDefinition meshes.mesh.example.com -> Service peers",]
    );
}

#[test]
fn an_object_of_an_aggregated_api_goes_before_its_api_service() {
    let api = |service: Value| {
        let spec = json!({"group": "mesh.example.com", "version": "v1", "service": service});
        object("apiregistration.k8s.io/v1", "APIService", "v1.mesh.example.com", json!({"spec": spec}))
    };
    let world = |service| World::new([api(service), mesh("app/mesh"), mesh("cluster")]);
    let aggregated = world(json!({"namespace": "ops", "name": "api"}));
    assert_eq!(aggregated.edges("of-api-service").len(), 2);
    assert!(world(Value::Null).edges("of-api-service").is_empty());
    let answered = aggregated.and([service("ops/api", "api"), deployment("ops/api", "default")]);
    assert_eq!(
        answered.edges("answered-by"),
        ["Service api -> Deployment api", "APIService v1.mesh.example.com -> Service api"]
    );
}
