//! One scenario on two stages: the sim and a real control plane.

use control_plane::{
    Part, Plane,
    fixtures::{self, Subject},
};
use http::{Method, Request, header};
use k8s_openapi::{
    api::rbac::v1::PolicyRule, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Client, client::Body};
use kube_custody::sim::{Cluster, Controller, Target};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

/// Where a scenario is played.
pub enum Stage {
    Sim(Cluster),
    Plane(&'static Plane),
    /// One that nobody else uses meanwhile.
    Alone(MutexGuard<'static, Plane>),
}

/// An answer: the status code, and the body as JSON or as a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub code: u16,
    pub body: Value,
}

impl Stage {
    /// The sim, with the kinds that scenarios use.
    pub fn sim(seed: u64) -> Self {
        let cluster = Cluster::builder().seed(seed).build();
        for crd in crds() {
            cluster.install(&crd).unwrap();
        }
        Self::Sim(cluster)
    }

    /// The shared real control plane, with the same kinds.
    pub async fn plane() -> Self {
        let plane = Plane::shared().await;
        serve(plane).await;
        Self::Plane(plane)
    }

    /// Another real control plane, which scenarios use one after the other. Owner references are enforced there; that does
    /// not concern the administrator.
    pub async fn alone() -> Self {
        static ALONE: OnceCell<Mutex<Plane>> = OnceCell::const_new();
        let flag = "--enable-admission-plugins=OwnerReferencesPermissionEnforcement";
        let start = async || Mutex::new(Plane::builder().apiserver_flag(flag).start().await.unwrap());
        let plane = ALONE.get_or_init(start).await.lock().await;
        // The one before may have failed in between.
        if !plane.pids().parts.contains_key(&Part::Controllers) {
            plane.start_part(Part::Controllers).await.unwrap();
        }
        serve(&plane).await;
        Self::Alone(plane)
    }

    /// The sim, or the real control plane.
    fn side(&self) -> Result<&Cluster, &Plane> {
        match self {
            Self::Sim(cluster) => Ok(cluster),
            Self::Plane(plane) => Err(plane),
            Self::Alone(plane) => Err(plane),
        }
    }

    pub fn client(&self) -> Client {
        match self.side() {
            Ok(cluster) => cluster.client(),
            Err(plane) => plane.client(),
        }
    }

    /// Waits until the controllers have nothing to do.
    pub async fn quiet(&self) {
        match self.side() {
            Ok(cluster) => drop(cluster.run_controllers()),
            Err(plane) => plane.gc_quiet().await.unwrap(),
        }
    }

    /// Whether the garbage collector knows an object of this UID.
    pub async fn knows(&self, uid: &str) -> bool {
        match self.side() {
            Ok(cluster) => cluster.gc_has_seen(uid),
            Err(plane) => plane.graph_has(uid).await.unwrap(),
        }
    }

    /// Waits until something holds.
    pub async fn until(&self, what: &str, mut probe: impl AsyncFnMut() -> bool) {
        match self.side() {
            Ok(cluster) => {
                cluster.run_controllers();
                assert!(probe().await, "{what}\n{}", cluster.audit());
            }
            Err(_) => fixtures::eventually(what, async || probe().await.then_some(())).await,
        }
    }

    /// The garbage collector is down until it is started. Not on the shared plane.
    pub async fn stop_collector(&self) {
        match self {
            Self::Sim(cluster) => cluster.pause(Controller::GarbageCollector),
            Self::Plane(_) => panic!("others use this plane"),
            Self::Alone(plane) => plane.kill(Part::Controllers).await.unwrap(),
        }
    }

    /// The garbage collector begins anew, with an empty graph. Not on the shared plane.
    pub async fn restart_collector(&self) {
        match self {
            Self::Sim(cluster) => {
                cluster.restart(Controller::GarbageCollector);
                cluster.resume(Controller::GarbageCollector);
            }
            Self::Plane(_) => panic!("others use this plane"),
            Self::Alone(plane) => plane.restart_garbage_collector().await.unwrap(),
        }
    }

    /// OwnerReferencesPermissionEnforcement is on. Not on the shared plane.
    pub fn enforce_owner_references(&self) {
        match self {
            Self::Sim(cluster) => cluster.enforce_owner_references(true),
            Self::Plane(_) => panic!("others use this plane"),
            Self::Alone(_) => {}
        }
    }

    /// A client of a new user who has these rights only.
    pub async fn user(&self, name: &str, rules: Vec<PolicyRule>) -> Client {
        let name = fixtures::ns(name);
        match self.side() {
            Ok(cluster) => {
                let user = name.clone();
                cluster.forbid(move |asking, verb, target| {
                    asking == user && !rules.iter().any(|rule| admits(rule, verb.as_str(), target))
                });
                cluster.client_as(&name)
            }
            Err(plane) => {
                let _rights = fixtures::grant(&plane.client(), &Subject::user(&name), None, rules).await;
                plane.client_as(&name)
            }
        }
    }

    /// Sends a request as it is.
    pub async fn send(&self, method: &str, path: &str, content_type: &str, body: Option<&Value>) -> Answer {
        Self::send_by(self.client(), method, path, content_type, body).await
    }

    /// Sends a request as it is, by this client.
    pub async fn send_by(client: Client, method: &str, path: &str, content_type: &str, body: Option<&Value>) -> Answer {
        let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let request = Request::builder()
            .method(Method::from_bytes(method.as_bytes()).unwrap())
            .uri(path)
            .header(header::CONTENT_TYPE, content_type)
            .header(header::ACCEPT, "application/json")
            .header(header::USER_AGENT, "scenario/1")
            .body(Body::from(body))
            .unwrap();
        let response = client.send(request).await.unwrap();
        let code = response.status().as_u16();
        let bytes = response.into_body().collect_bytes().await.unwrap();
        let body = serde_json::from_slice(&bytes).unwrap_or_else(|_| json!(String::from_utf8_lossy(&bytes)));
        Answer { code, body }
    }

    pub async fn get(&self, path: &str) -> Option<Value> {
        let answer = self.send("GET", path, JSON, None).await;
        match answer.code {
            200 => Some(answer.body),
            404 => None,
            _ => panic!("{path}: {answer:?}"),
        }
    }

    /// Creates an object and returns it.
    pub async fn create(&self, path: &str, object: Value) -> Value {
        let answer = self.send("POST", path, JSON, Some(&object)).await;
        assert_eq!(answer.code, 201, "{object}: {answer:?}");
        answer.body
    }

    pub async fn patch(&self, path: &str, patch: Value) -> Answer {
        self.send("PATCH", path, MERGE, Some(&patch)).await
    }

    pub async fn delete(&self, path: &str, policy: &str) -> Answer {
        self.send("DELETE", path, JSON, Some(&json!({"propagationPolicy": policy}))).await
    }

    /// A new namespace.
    pub async fn namespace(&self, prefix: &str) -> String {
        let name = fixtures::ns(prefix);
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        self.create("/api/v1/namespaces", object).await;
        name
    }
}

pub const JSON: &str = "application/json";
pub const MERGE: &str = "application/merge-patch+json";

/// Plays a scenario on both stages, the real one being shared.
macro_rules! both {
    ($($scenarios:tt)*) => { $crate::both::scenarios! { plane $($scenarios)* } };
}

/// Plays a scenario on both stages, with a real one that nobody else uses meanwhile.
macro_rules! both_alone {
    ($($scenarios:tt)*) => { $crate::both::scenarios! { alone $($scenarios)* } };
}

macro_rules! scenarios {
    ($real:ident $($(#[$meta:meta])* async fn $name:ident($stage:ident: &Stage) $body:block)*) => {$(
        mod $name {
            use super::*;

            $(#[$meta])*
            async fn scenario($stage: &Stage) $body

            #[tokio::test(start_paused = true)]
            async fn on_the_sim() {
                for seed in 0..20 {
                    scenario(&Stage::sim(seed)).await;
                }
            }

            #[tokio::test]
            async fn on_the_plane() {
                scenario(&Stage::$real().await).await;
            }
        }
    )*};
}
pub(crate) use {both, both_alone, scenarios};

/// Whether a rule of RBAC admits this.
fn admits(rule: &PolicyRule, verb: &str, target: &Target) -> bool {
    let sub = |resource: &str| match target.subresource.as_str() {
        "" => resource.to_owned(),
        subresource => format!("{resource}/{subresource}"),
    };
    let has = |list: &[String], text: &str| list.iter().any(|known| known == text || known == "*");
    let resources = rule.resources.as_deref().unwrap_or_default();
    has(&rule.verbs, verb)
        && has(rule.api_groups.as_deref().unwrap_or_default(), &target.group)
        && (has(resources, &sub(&target.plural)) || resources.contains(&sub("*")))
}

/// Makes a real control plane serve the kinds that scenarios use.
async fn serve(plane: &Plane) {
    for crd in crds() {
        fixtures::apply_crd(&plane.client(), &crd).await;
    }
}

/// A namespaced kind `Thing` and one of cluster scope, `Big`, with the same schema.
fn crds() -> [CustomResourceDefinition; 2] {
    let crd = |plural: &str, kind: &str, scope: &str| {
        let schema = json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {
                "a": {"type": "string"}, "n": {"type": "integer", "default": 3},
                "l": {
                    "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                    "items": {"type": "object", "required": ["name"], "properties": {
                        "name": {"type": "string"}, "v": {"type": "string"},
                    }},
                },
                "s": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            }},
            "status": {"type": "object", "properties": {"m": {"type": "string"}}},
        }});
        serde_json::from_value(json!({
            "metadata": {"name": format!("{plural}.both.example.com")},
            "spec": {
                "group": "both.example.com", "scope": scope,
                "names": {"plural": plural, "kind": kind, "singular": kind.to_lowercase(), "listKind": format!("{kind}List")},
                "versions": [{
                    "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": schema},
                }],
            },
        }))
        .unwrap()
    };
    [crd("things", "Thing", "Namespaced"), crd("bigs", "Big", "Cluster")]
}

/// SplitMix64.
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(end).unwrap()).unwrap()
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn of<T: Clone>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())].clone()
    }
}

/// A number from the environment.
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
