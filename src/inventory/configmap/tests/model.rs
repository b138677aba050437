//! ConfigMaps in memory, as the API server keeps them: names, UIDs, resource versions, finalizers, terminating
//! objects and namespaces. Calls can be cut off, and every call gives way once, so that a test decides who goes next.

use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll},
};

use async_trait::async_trait;
use k8s_openapi::{
    api::core::v1::ConfigMap,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use serde_json::Value;

use super::super::{
    objects::{Fault, Objects},
    piece::Seen,
};

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<String, ConfigMap>,
    serial: u64,
    terminating: bool,
    calls: Vec<String>,
    writes: Vec<String>,
    /// The call at which the caller crashes, and whether the server still carries it out.
    cut: Option<(usize, bool)>,
}

/// Handles share one world.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    state: Arc<Mutex<State>>,
    /// Reads of names that end so take that many turns more than others.
    slow: Option<(&'static str, usize)>,
}

impl Model {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// From now on, cuts the caller off at its `call`th call.
    pub(super) fn cut(&self, call: usize, carried_out: bool) {
        let mut state = self.state();
        state.calls.clear();
        state.cut = Some((call, carried_out));
    }

    pub(super) fn heal(&self) {
        self.state().cut = None;
    }

    /// A handle on the same world through which reads of names that end so take that many turns more than others.
    pub(super) fn slowed(&self, suffix: &'static str, turns: usize) -> Self {
        Self { slow: Some((suffix, turns)), ..self.clone() }
    }

    /// Whether the cut has happened.
    pub(super) fn was_cut(&self) -> bool {
        let state = self.state();
        state.cut.is_some_and(|(call, _)| state.calls.len() > call)
    }

    pub(super) fn take_calls(&self) -> Vec<String> {
        std::mem::take(&mut self.state().calls)
    }

    pub(super) fn take_writes(&self) -> Vec<String> {
        std::mem::take(&mut self.state().writes)
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.state().objects.keys().cloned().collect()
    }

    pub(super) fn object(&self, name: &str) -> Option<ConfigMap> {
        self.state().objects.get(name).cloned()
    }

    pub(super) fn terminate_namespace(&self) {
        let mut state = self.state();
        state.terminating = true;
        let State { objects, serial, .. } = &mut *state;
        objects.values_mut().for_each(|object| mark(object, serial));
    }

    /// Somebody deletes an object.
    pub(super) fn delete_by_hand(&self, name: &str) {
        let mut state = self.state();
        let State { objects, serial, .. } = &mut *state;
        let object = objects.get_mut(name).unwrap();
        mark(object, serial);
        if object.metadata.finalizers.as_ref().is_none_or(Vec::is_empty) {
            objects.remove(name);
        }
    }

    /// Takes an object away by force.
    pub(super) fn vanish(&self, name: &str) {
        self.state().objects.remove(name).unwrap();
    }

    /// Changes an object behind everybody's back, with a new resource version.
    pub(super) fn tamper(&self, name: &str, change: impl FnOnce(&mut ConfigMap)) {
        let mut state = self.state();
        let State { objects, serial, .. } = &mut *state;
        let object = objects.get_mut(name).unwrap();
        change(object);
        *serial += 1;
        object.metadata.resource_version = Some(serial.to_string());
    }

    pub(super) fn put(&self, mut object: ConfigMap) {
        let mut state = self.state();
        state.serial += 1;
        object.metadata.uid = Some(format!("uid-{}", state.serial));
        object.metadata.resource_version = Some(state.serial.to_string());
        state.objects.insert(object.metadata.name.clone().unwrap(), object);
    }

    /// One call: recorded, cut off if it is its turn, and otherwise carried out.
    async fn call<T>(
        &self,
        verb: &str,
        name: &str,
        effect: impl FnOnce(&mut State) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let slow = self.slow.filter(|(suffix, _)| verb == "GET" && name.ends_with(suffix));
        for _ in 0..=slow.map_or(0, |(_, turns)| turns) {
            GiveWay(false).await;
        }
        let state = &mut *self.state();
        let number = state.calls.len();
        state.calls.push(format!("{verb} {name}"));
        let cut_off = || Fault::Other("cut off".into());
        match state.cut {
            Some((call, false)) if number >= call => Err(cut_off()),
            Some((call, true)) if number > call => Err(cut_off()),
            Some((call, true)) if number == call => {
                let _lost = effect(state);
                Err(cut_off())
            }
            _ => effect(state),
        }
    }
}

/// Pending once.
struct GiveWay(bool);

impl Future for GiveWay {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

fn mark(object: &mut ConfigMap, serial: &mut u64) {
    if object.metadata.deletion_timestamp.is_none() {
        *serial += 1;
        object.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
        object.metadata.resource_version = Some(serial.to_string());
    }
}

fn size(object: &ConfigMap) -> usize {
    let texts = object.data.iter().flatten().map(|(_, text)| text.len());
    texts.chain(object.binary_data.iter().flatten().map(|(_, bytes)| bytes.0.len())).sum()
}

#[async_trait]
impl Objects for Model {
    async fn get(&self, _: &str, name: &str) -> Result<Option<ConfigMap>, Fault> {
        self.call("GET", name, |state| Ok(state.objects.get(name).cloned())).await
    }

    async fn create(&self, namespace: &str, object: &ConfigMap, dry_run: bool) -> Result<ConfigMap, Fault> {
        let name = object.metadata.name.clone().unwrap();
        let verb = if dry_run { "TRY" } else { "POST" };
        self.call(verb, &name.clone(), |state| {
            if state.terminating {
                return Err(Fault::NamespaceTerminating);
            }
            if state.objects.contains_key(&name) {
                return Err(Fault::AlreadyExists);
            }
            assert!(size(object) <= 1 << 20, "the API server refuses this");
            let mut object = object.clone();
            object.metadata.namespace = Some(namespace.to_owned());
            if !dry_run {
                state.serial += 1;
                object.metadata.uid = Some(format!("uid-{}", state.serial));
                object.metadata.resource_version = Some(state.serial.to_string());
                state.writes.push(name.clone());
                state.objects.insert(name, object.clone());
            }
            Ok(object)
        })
        .await
    }

    async fn patch(&self, _: &str, name: &str, patch: &Value) -> Result<ConfigMap, Fault> {
        self.call("PATCH", name, |state| {
            let Some(object) = state.objects.get(name) else { return Err(Fault::NotFound) };
            let text = |key: &str| patch["metadata"][key].as_str().map(ToOwned::to_owned);
            assert!(text("uid").is_some() && text("resourceVersion").is_some(), "an unconditional write: {patch}");
            if text("uid") != object.metadata.uid || text("resourceVersion") != object.metadata.resource_version {
                return Err(Fault::Conflict);
            }
            let mut value = serde_json::to_value(object).unwrap();
            json_patch::merge(&mut value, patch);
            let mut patched: ConfigMap = serde_json::from_value(value).unwrap();
            assert!(size(&patched) <= 1 << 20, "the API server refuses this");
            if patched == *object {
                return Ok(patched);
            }
            let finalizers = patched.metadata.finalizers.clone().unwrap_or_default();
            if object.metadata.deletion_timestamp.is_some() {
                let known = object.metadata.finalizers.clone().unwrap_or_default();
                assert!(finalizers.iter().all(|f| known.contains(f)), "a new finalizer on a terminating object");
            }
            state.serial += 1;
            patched.metadata.resource_version = Some(state.serial.to_string());
            state.writes.push(name.to_owned());
            if patched.metadata.deletion_timestamp.is_some() && finalizers.is_empty() {
                state.objects.remove(name);
            } else {
                state.objects.insert(name.to_owned(), patched.clone());
            }
            Ok(patched)
        })
        .await
    }

    async fn delete(&self, _: &str, seen: &Seen) -> Result<Option<ConfigMap>, Fault> {
        self.call("DELETE", &seen.name, |state| {
            let State { objects, serial, writes, .. } = state;
            let Some(object) = objects.get_mut(&seen.name) else { return Err(Fault::NotFound) };
            let ObjectMeta { uid, resource_version, .. } = &object.metadata;
            if uid.as_ref() != Some(&seen.uid) || resource_version.as_ref() != Some(&seen.resource_version) {
                return Err(Fault::Conflict);
            }
            writes.push(seen.name.clone());
            if object.metadata.finalizers.as_ref().is_none_or(Vec::is_empty) {
                objects.remove(&seen.name);
                return Ok(None);
            }
            mark(object, serial);
            Ok(Some(object.clone()))
        })
        .await
    }

    async fn list(&self, namespace: Option<&str>, selector: &str) -> Result<Vec<ObjectMeta>, Fault> {
        let namespace = namespace.unwrap_or("home").to_owned();
        self.call("LIST", selector, |state| {
            let (key, value) = selector.split_once('=').map_or((selector, None), |(key, value)| (key, Some(value)));
            let is = |label: Option<&String>| label.is_some_and(|label| value.is_none_or(|value| label == value));
            let labelled = |meta: &ObjectMeta| is(meta.labels.as_ref().and_then(|labels| labels.get(key)));
            let found = state.objects.values().map(|object| object.metadata.clone()).filter(labelled);
            Ok(found.map(|meta| ObjectMeta { namespace: Some(namespace.clone()), ..meta }).collect())
        })
        .await
    }
}
