//! One object and the API server's rules for changing its metadata, with a referee for our patches.

use std::{
    future::{Future, poll_fn},
    sync::{Arc, Mutex, MutexGuard},
    task::Poll,
};

use http::{Method, Request, Response};
use json_patch::PatchOperation;
use k8s_openapi::{
    api::core::v1::ConfigMap,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube_client::{Client, client::Body};
use kube_core::PartialObjectMeta;
use serde_json::{Value, json};

use super::super::remote::Remote;
use crate::{
    answer::Refusal,
    object::{LiveRef, ObjectId, ResourceKind, Scope, Uid},
};

pub(super) const OURS: &str = "ours.example.com/cleanup";
pub(super) const SECOND: &str = "ours.example.com/applied";
pub(super) const LEGACY: &str = "ours.example.com";

/// Whether a finalizer is one of ours.
pub(super) fn is_ours(name: &str) -> bool {
    [OURS, SECOND, LEGACY].contains(&name)
}

pub(super) fn config_maps() -> ResourceKind {
    ResourceKind::new("", "v1", "ConfigMap", "configmaps", Scope::Namespaced)
}

pub(super) fn target(uid: &str) -> LiveRef {
    LiveRef::new(ObjectId::new("", "ConfigMap", Some("n"), "parent").unwrap(), Uid::new(uid).unwrap())
}

/// What happens to the object at one point of the conversation, by somebody else's hand.
type Interference = Box<dyn FnMut(&mut State, &str, usize) + Send>;

#[derive(Default)]
pub(super) struct State {
    pub(super) object: Option<ObjectMeta>,
    pub(super) version: u64,
    /// `GET` and `PATCH`, in order.
    pub(super) calls: Vec<&'static str>,
    pub(super) bodies: Vec<(Value, String)>,
    pub(super) violations: Vec<String>,
    /// Answers every patch that passes its tests.
    pub(super) refuse_patches: Option<Value>,
    /// Answers everything.
    pub(super) refuse_all: Option<(u16, Vec<u8>)>,
    /// Runs before each call, with the method and the number of calls made so far.
    pub(super) interference: Option<Interference>,
}

impl State {
    pub(super) fn create(&mut self, uid: &str, finalizers: &[&str]) {
        self.object = Some(ObjectMeta {
            name: Some("parent".into()),
            namespace: Some("n".into()),
            uid: Some(uid.into()),
            ..ObjectMeta::default()
        });
        self.edit(|meta| meta.finalizers = Some(finalizers.iter().map(|f| (*f).to_owned()).collect()));
    }

    /// A write by anybody, with what the server makes of it.
    pub(super) fn edit(&mut self, change: impl FnOnce(&mut ObjectMeta)) {
        let Some(meta) = &mut self.object else { return };
        change(meta);
        self.version += 1;
        meta.resource_version = Some(self.version.to_string());
        meta.finalizers = meta.finalizers.take().filter(|f| !f.is_empty());
        if meta.deletion_timestamp.is_some() && meta.finalizers.is_none() {
            self.object = None;
        }
    }

    pub(super) fn delete(&mut self) {
        self.edit(|meta| {
            meta.deletion_timestamp.get_or_insert_with(|| Time("2026-01-01T00:00:00Z".parse().unwrap()));
        });
    }

    pub(super) fn finalizers(&self) -> Vec<String> {
        self.object.as_ref().and_then(|o| o.finalizers.clone()).unwrap_or_default()
    }

    pub(super) fn annotation(&self, key: &str) -> Option<String> {
        self.object.as_ref()?.annotations.as_ref()?.get(key).cloned()
    }

    fn call(&mut self, method: &'static str) {
        if let Some(mut interfere) = self.interference.take() {
            interfere(self, method, self.calls.len());
            self.interference = Some(interfere);
        }
        self.calls.push(method);
    }

    fn read(&mut self) -> Result<Value, Value> {
        self.call("GET");
        self.object.as_ref().map(present).ok_or_else(not_found)
    }

    fn patch(&mut self, patch: &json_patch::Patch) -> Result<Value, Value> {
        self.call("PATCH");
        let before = self.object.clone().ok_or_else(not_found)?;
        let mut value = present(&before);
        for operation in &patch.0 {
            let missing = |op: &PatchOperation| match op {
                PatchOperation::Test(t) => t.value.is_null() && t.path.resolve(&value).is_err(),
                _ => false,
            };
            if missing(operation) {
                continue;
            }
            json_patch::patch(&mut value, std::slice::from_ref(operation)).map_err(|_| {
                failure(422, "Invalid", "the server rejected our request due to an error in our request")
            })?;
        }
        if let Some(refusal) = &self.refuse_patches {
            return Err(refusal.clone());
        }
        let after: ObjectMeta = serde_json::from_value(value["metadata"].clone()).unwrap();
        let listed = |meta: &ObjectMeta| meta.finalizers.clone().unwrap_or_default();
        let new = listed(&after).iter().any(|f| !listed(&before).contains(f));
        if new && before.deletion_timestamp.is_some() {
            let mut closed = failure(422, "Invalid", "no new finalizers can be added if the object is being deleted");
            closed["details"] = json!({"causes": [{"reason": "FieldValueForbidden", "field": "metadata.finalizers",
                "message": "Forbidden: no new finalizers can be added if the object is being deleted"}]});
            return Err(closed);
        }
        let foreign = |meta: &ObjectMeta| listed(meta).into_iter().filter(|f| !is_ours(f)).collect::<Vec<_>>();
        if foreign(&before) != foreign(&after) {
            self.violations.push(format!("foreign finalizers {:?} became {:?}", foreign(&before), foreign(&after)));
        }
        if before.uid != after.uid {
            self.violations.push("a uid was written".into());
        }
        let answer = present(&after);
        self.edit(|meta| *meta = after);
        // The last finalizer's removal is answered with the request's state; otherwise the stored one.
        Ok(self.object.as_ref().map_or(answer, present))
    }
}

fn present(meta: &ObjectMeta) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta})
}

pub(super) fn failure(code: u16, reason: &str, message: &str) -> Value {
    json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message})
}

fn not_found() -> Value {
    let mut status = failure(404, "NotFound", "configmaps \"parent\" not found");
    status["details"] = json!({"name": "parent", "kind": "configmaps"});
    status
}

/// The object's home, shared by everybody who writes.
#[derive(Clone, Default)]
pub(super) struct World(Arc<Mutex<State>>);

impl World {
    pub(super) fn with(uid: &str, finalizers: &[&str]) -> Self {
        let world = Self::default();
        world.state().create(uid, finalizers);
        world
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub(super) fn interfere(&self, with: impl FnMut(&mut State, &str, usize) + Send + 'static) {
        self.state().interference = Some(Box::new(with));
    }

    pub(super) fn calls(&self) -> Vec<&'static str> {
        self.state().calls.clone()
    }

    /// A client that reaches the object by HTTP.
    pub(super) fn client(&self) -> Client {
        let world = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let world = world.clone();
            async move {
                assert_eq!(request.uri().path(), "/api/v1/namespaces/n/configmaps/parent");
                let query = request.uri().query().unwrap_or("").to_owned();
                let method = request.method().clone();
                let body = request.into_body().collect_bytes().await.unwrap();
                let mut state = world.state();
                if let Some((code, body)) = &state.refuse_all {
                    return Response::builder().status(*code).body(Body::from(body.clone()));
                }
                let answer = match method {
                    Method::GET => state.read(),
                    Method::PATCH => {
                        state.bodies.push((serde_json::from_slice(&body).unwrap(), query));
                        state.patch(&serde_json::from_slice(&body).unwrap())
                    }
                    other => panic!("unexpected {other}"),
                };
                let code = answer.as_ref().err().and_then(|s| s["code"].as_u64()).unwrap_or(200);
                let body = serde_json::to_vec(&answer.unwrap_or_else(|status| status)).unwrap();
                Response::builder().status(u16::try_from(code).unwrap()).body(Body::from(body))
            }
        });
        Client::new(service, "n")
    }
}

/// Direct access that lets others act before every call.
pub(super) struct Direct {
    pub(super) world: World,
    /// The incarnation we may touch.
    pub(super) uid: String,
}

/// Returns to the scheduler once.
async fn pause() {
    let mut paused = false;
    poll_fn(|_| if std::mem::replace(&mut paused, true) { Poll::Ready(()) } else { Poll::Pending }).await;
}

fn answer(result: Result<Value, Value>, id: &ObjectId) -> Result<PartialObjectMeta<ConfigMap>, Refusal> {
    result.map(|object| serde_json::from_value(object).unwrap()).map_err(|status| {
        let status: kube_core::Status = serde_json::from_value(status).unwrap();
        Refusal::about(id, &kube_client::Error::Api(status.boxed()))
    })
}

impl Remote<PartialObjectMeta<ConfigMap>> for Direct {
    async fn get(&self, id: &ObjectId) -> Result<PartialObjectMeta<ConfigMap>, Refusal> {
        pause().await;
        answer(self.world.state().read(), id)
    }

    async fn patch(&self, id: &ObjectId, patch: json_patch::Patch) -> Result<PartialObjectMeta<ConfigMap>, Refusal> {
        pause().await;
        let mut state = self.world.state();
        let uid = state.object.as_ref().and_then(|o| o.uid.clone());
        let result = state.patch(&patch);
        if result.is_ok() && uid.as_ref() != Some(&self.uid) {
            state.violations.push(format!("patched {uid:?} instead of {:?}", self.uid));
        }
        answer(result, id)
    }
}

/// Polls once, by hand.
pub(super) fn poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    let waker = futures::task::noop_waker();
    let mut context = std::task::Context::from_waker(&waker);
    match std::pin::Pin::new(future).poll(&mut context) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}
