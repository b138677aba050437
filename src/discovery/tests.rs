use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
};

use http::{Request, Response};
use kube_client::client::Body;
use serde_json::{Value, json};

use super::*;

/// Answers discovery from a table that tests change, counts the requests for each path and takes its time.
#[derive(Clone, Default)]
struct Server {
    answers: Arc<Mutex<BTreeMap<String, (u16, Value)>>>,
    asked: Arc<Mutex<Vec<String>>>,
    hang: Arc<AtomicUsize>,
}

impl Server {
    fn says(&self, path: &str, code: u16, body: Value) -> &Self {
        lock(&self.answers).insert(path.into(), (code, body));
        self
    }

    fn group(&self, group: &str, versions: &[&str]) -> &Self {
        let named = |v: &&str| json!({"groupVersion": format!("{group}/{v}"), "version": v});
        let all: Vec<_> = versions.iter().map(named).collect();
        let body =
            json!({"kind": "APIGroup", "apiVersion": "v1", "name": group, "versions": all, "preferredVersion": all[0]});
        self.says(&format!("/apis/{group}"), 200, body)
    }

    fn version(&self, group_version: &str, kinds: &[(&str, &str)]) -> &Self {
        let resource = |(kind, plural): &(&str, &str)| json!({"kind": kind, "name": plural, "singularName": "", "namespaced": true, "verbs": ["get", "delete"]});
        let prefix = if group_version.contains('/') { "/apis" } else { "/api" };
        self.says(
            &format!("{prefix}/{group_version}"),
            200,
            json!({"kind": "APIResourceList", "apiVersion": "v1",
            "groupVersion": group_version, "resources": kinds.iter().map(resource).collect::<Vec<_>>()}),
        )
    }

    fn asked(&self) -> usize {
        lock(&self.asked).len()
    }

    fn resolver(&self) -> Resolver {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let path = request.uri().path().to_owned();
                lock(&server.asked).push(path.clone());
                if server.hang.load(Ordering::Relaxed) > 0 {
                    std::future::pending::<()>().await;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
                let answer = lock(&server.answers).get(&path).cloned();
                let (code, body) = match answer {
                    Some((code, body)) => (code, serde_json::to_vec(&body).unwrap()),
                    None => (404, b"404 page not found\n".to_vec()),
                };
                Response::builder().status(code).body(Body::from(body))
            }
        });
        Resolver::new(Client::new(service, "default"))
    }
}

fn unavailable() -> Value {
    json!({"kind": "Status", "status": "Failure", "code": 503, "reason": "ServiceUnavailable", "message": "down"})
}

fn no_crd(name: &str) -> Value {
    json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound",
        "message": format!("customresourcedefinitions.apiextensions.k8s.io {name:?} not found"),
        "details": {"name": name, "group": "apiextensions.k8s.io", "kind": "customresourcedefinitions"}})
}

fn kind(group: &str, kind: &str) -> GroupKind {
    GroupKind::new(group, kind).unwrap()
}

fn widgets() -> ResourceKind {
    ResourceKind::new("x.example.com", "v1", "Widget", "widgets", Scope::Namespaced)
}

const WIDGET_CRD: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.x.example.com";

#[tokio::test(start_paused = true)]
async fn a_known_kind_costs_nothing_and_a_new_one_is_found() {
    let server = Server::default();
    server.group("x.example.com", &["v1"]).version("x.example.com/v1", &[("Widget", "widgets")]);
    let resolver = server.resolver();
    assert_eq!(resolver.resolve(&kind("x.example.com", "Widget")).await, Resolution::Served(widgets()));
    assert_eq!(server.asked(), 2);
    assert_eq!(resolver.clone().resolve(&kind("x.example.com", "Widget")).await, Resolution::Served(widgets()));
    assert_eq!(server.asked(), 2);

    assert_eq!(resolver.resolve(&kind("x.example.com", "Gadget")).await, Resolution::NotServed);
    server.version("x.example.com/v1", &[("Widget", "widgets"), ("Gadget", "gadgets")]);
    assert!(matches!(resolver.resolve(&kind("x.example.com", "Gadget")).await, Resolution::Served(_)));
}

#[tokio::test(start_paused = true)]
async fn the_core_group_is_asked_at_its_own_place() {
    let server = Server::default();
    server.says("/api", 200, json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}));
    server.version("v1", &[("ConfigMap", "configmaps")]);
    let served = server.resolver().resolve(&kind("", "ConfigMap")).await;
    assert_eq!(served, Resolution::Served(ResourceKind::new("", "v1", "ConfigMap", "configmaps", Scope::Namespaced)));
}

#[tokio::test(start_paused = true)]
async fn callers_at_the_same_time_share_one_look_up() {
    let server = Server::default();
    server.group("x.example.com", &["v1"]).version("x.example.com/v1", &[("Widget", "widgets")]);
    let resolver = server.resolver();
    let (widget, gadget) = (kind("x.example.com", "Widget"), kind("x.example.com", "Gadget"));
    let missing = join_all((0..50).map(|_| resolver.resolve(&gadget)));
    let (found, missing) = tokio::join!(join_all((0..50).map(|_| resolver.resolve(&widget))), missing);
    assert!(found.iter().all(|r| *r == Resolution::Served(widgets())));
    assert!(missing.iter().all(|r| *r == Resolution::NotServed));
    assert_eq!(server.asked(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_refresh_is_never_served_by_an_older_request() {
    let server = Server::default();
    server.group("x.example.com", &["v1"]).version("x.example.com/v1", &[]);
    let resolver = server.resolver();
    let widget = kind("x.example.com", "Widget");
    let slow = tokio::spawn({
        let (resolver, widget) = (resolver.clone(), widget.clone());
        async move { resolver.resolve(&widget).await }
    });
    tokio::time::sleep(Duration::from_millis(12)).await;
    assert_eq!(slow.await.unwrap(), Resolution::NotServed);

    // A look-up is under way (it has read the old list or is about to), then the kind comes, then we ask.
    let old = tokio::spawn({
        let (resolver, widget) = (resolver.clone(), widget.clone());
        async move { resolver.resolve(&widget).await }
    });
    tokio::time::sleep(Duration::from_millis(1)).await;
    server.version("x.example.com/v1", &[("Widget", "widgets")]);
    let before = server.asked();
    assert_eq!(resolver.refresh(&widget).await, Resolution::Served(widgets()));
    old.await.unwrap();
    assert_eq!(server.asked(), before + 1 + 2, "the rest of the old look-up, and one of our own");
}

#[tokio::test(start_paused = true)]
async fn c19_a_broken_group_neither_hides_nor_condemns_others() {
    let server = Server::default();
    server.group("x.example.com", &["v1"]).version("x.example.com/v1", &[("Widget", "widgets")]);
    server.group("metrics.example.com", &["v1"]).says("/apis/metrics.example.com/v1", 503, unavailable());
    let resolver = server.resolver();
    let broken = kind("metrics.example.com", "NodeMetrics");
    assert!(matches!(resolver.resolve(&broken).await, Resolution::Unavailable { reason } if reason.contains("503")));
    assert_eq!(resolver.resolve(&kind("x.example.com", "Widget")).await, Resolution::Served(widgets()));
    assert_eq!(resolver.resolve(&kind("nobody.example.com", "X")).await, Resolution::NotServed);
}

#[tokio::test(start_paused = true)]
async fn an_outage_does_not_wipe_what_was_known() {
    let server = Server::default();
    server.group("x.example.com", &["v1"]).version("x.example.com/v1", &[("Widget", "widgets")]);
    let resolver = server.resolver();
    let widget = kind("x.example.com", "Widget");
    resolver.resolve(&widget).await;
    server.says("/apis/x.example.com", 503, unavailable());
    assert!(matches!(resolver.refresh(&widget).await, Resolution::Unavailable { .. }));
    assert_eq!(resolver.resolve(&widget).await, Resolution::Served(widgets()));
}

#[tokio::test(start_paused = true)]
async fn another_served_version_does_when_the_preferred_one_lacks_the_kind() {
    let server = Server::default();
    server.group("x.example.com", &["v2", "v1"]);
    server.version("x.example.com/v2", &[]).version("x.example.com/v1", &[("Widget", "widgets")]);
    let resolver = server.resolver();
    let widget = kind("x.example.com", "Widget");
    assert_eq!(resolver.resolve(&widget).await, Resolution::Served(widgets()));
    let versions = resolver.served_versions(&widget).await;
    assert!(versions.contains("v1") && !versions.contains("v2") && versions.unavailable.is_none());
    assert_eq!(server.asked(), 3);
}

#[tokio::test(start_paused = true)]
async fn silence_and_nonsense_are_unavailable() {
    let server = Server::default();
    server.says("/apis/html.example.com", 200, json!({"hello": "world"}));
    let resolver = server.resolver().timeout(Duration::from_secs(3));
    assert!(matches!(resolver.resolve(&kind("html.example.com", "X")).await, Resolution::Unavailable { .. }));
    let unchecked: GroupKind = serde_json::from_value(json!({"group": "../../api", "kind": "X"})).unwrap();
    assert!(matches!(resolver.resolve(&unchecked).await, Resolution::Unavailable { .. }));
    server.hang.store(1, Ordering::Relaxed);
    let silent = resolver.resolve(&kind("x.example.com", "X")).await;
    assert!(matches!(&silent, Resolution::Unavailable { reason } if reason.contains("within 3s")), "{silent:?}");
}

#[tokio::test(start_paused = true)]
async fn a_look_up_that_is_dropped_does_not_block_the_next() {
    let server = Server::default();
    server.group("x.example.com", &["v1"]).version("x.example.com/v1", &[("Widget", "widgets")]);
    let resolver = server.resolver();
    let widget = kind("x.example.com", "Widget");
    let dropped = tokio::time::timeout(Duration::from_millis(1), resolver.resolve(&widget)).await;
    assert!(dropped.is_err());
    assert_eq!(resolver.refresh(&widget).await, Resolution::Served(widgets()));
}

#[tokio::test(start_paused = true)]
async fn only_the_named_definition_missing_proves_a_kind_gone() {
    let server = Server::default();
    let resolver = server.resolver();
    let unknown = |crd: Crd| matches!(crd, Crd::Unknown { .. });
    assert!(unknown(resolver.crd_of(&widgets()).await), "a plain-text 404 is no answer about the definition");

    server.says(WIDGET_CRD, 404, no_crd("widgets.x.example.com"));
    assert_eq!(resolver.crd_of(&widgets()).await, Crd::NotFound);

    server.group("x.example.com", &["v1"]).version("x.example.com/v1", &[("Gadget", "gadgets")]);
    assert_eq!(resolver.crd_of(&widgets()).await, Crd::NotFound, "the group lives on without the kind");

    server.version("x.example.com/v1", &[("Widget", "widgets")]);
    assert!(unknown(resolver.crd_of(&widgets()).await), "an aggregated API server serves it");
    server.says("/apis/x.example.com/v1", 503, unavailable());
    assert!(unknown(resolver.crd_of(&widgets()).await), "an aggregated API server may serve it");

    server.says(WIDGET_CRD, 403, json!({"status": "Failure", "code": 403, "reason": "Forbidden", "message": "no"}));
    assert!(unknown(resolver.crd_of(&widgets()).await));
    server.says(
        WIDGET_CRD,
        200,
        json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": {"name": "widgets.x.example.com", "uid": "u"}}),
    );
    assert!(matches!(resolver.crd_of(&widgets()).await, Crd::Present(meta) if meta.uid.as_deref() == Some("u")));
}

#[tokio::test(start_paused = true)]
async fn a_kind_of_unknown_plural_is_looked_for_among_the_definitions_of_its_group() {
    let server = Server::default();
    let resolver = server.resolver();
    let widget = kind("x.example.com", "Widget");
    let unknown = |crd: Crd| matches!(crd, Crd::Unknown { .. });
    let all = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert!(unknown(resolver.crd_of_kind(&widget).await), "the definitions cannot be listed");

    let names = |names: &[&str]| {
        let items: Vec<_> = names.iter().map(|name| json!({"metadata": {"name": name, "uid": "u"}})).collect();
        json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {}, "items": items})
    };
    server.says(all, 200, names(&["widgets.y.example.com", "gadgets.x.example.com"]));
    assert!(unknown(resolver.crd_of_kind(&widget).await), "a definition of the group cannot be read");

    let defines = |name: &str, kind: &str| {
        json!({"kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1",
            "metadata": {"name": name, "uid": "u"}, "spec": {"group": "x.example.com", "scope": "Namespaced",
            "names": {"kind": kind, "plural": "gadgets"}, "versions": []}})
    };
    let gadgets = format!("{all}/gadgets.x.example.com");
    server.says(&gadgets, 200, defines("gadgets.x.example.com", "Gadget"));
    assert_eq!(resolver.crd_of_kind(&widget).await, Crd::NotFound);
    server.group("x.example.com", &["v1"]).version("x.example.com/v1", &[("Widget", "gadgets")]);
    assert!(unknown(resolver.crd_of_kind(&widget).await), "an aggregated API server serves it");
    server.says(&gadgets, 200, defines("gadgets.x.example.com", "Widget"));
    assert!(matches!(resolver.crd_of_kind(&widget).await, Crd::Present(_)));
    assert!(unknown(resolver.crd_of_kind(&kind("", "ConfigMap")).await));
}

#[tokio::test(start_paused = true)]
async fn built_in_kinds_are_never_proven_gone_by_a_missing_definition() {
    let resolver = Server::default().resolver();
    for (group, kind, plural) in [
        ("", "ConfigMap", "configmaps"),
        ("apps", "Deployment", "deployments"),
        ("rbac.authorization.k8s.io", "Role", "roles"),
    ] {
        let kind = ResourceKind::new(group, "v1", kind, plural, Scope::Namespaced);
        assert!(matches!(resolver.crd_of(&kind).await, Crd::Unknown { .. }));
    }
}

#[tokio::test(start_paused = true)]
async fn the_cluster_id_is_the_uid_of_kube_system() {
    let server = Server::default();
    let path = "/api/v1/namespaces/kube-system";
    server.says(path, 200, json!({"kind": "PartialObjectMetadata", "metadata": {"name": "kube-system", "uid": "c1"}}));
    let client = server.resolver().client;
    assert_eq!(cluster_id(&client).await.unwrap().to_string(), "c1");
    server.says(path, 200, json!({"kind": "PartialObjectMetadata", "metadata": {"name": "kube-system"}}));
    assert!(matches!(cluster_id(&client).await, Err(Error::ClusterIdMissing { .. })));
    server.says(
        path,
        403,
        json!({"status": "Failure", "code": 403, "reason": "Forbidden",
        "message": "namespaces \"kube-system\" is forbidden: User \"a\" cannot get resource \"namespaces\""}),
    );
    let error = cluster_id(&client).await.unwrap_err();
    assert!(matches!(error, Error::ClusterIdForbidden { .. }));
    assert!(error.to_string().contains("resourceNames: [kube-system]"), "{error}");
}
