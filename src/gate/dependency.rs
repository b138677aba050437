//! What a parent names, and how a kind of parents is read.

use std::{
    any::{Any, TypeId, type_name},
    fmt,
    marker::PhantomData,
    sync::Arc,
};

use kube_core::{ClusterResourceScope, DynamicObject, Resource};
use serde::de::DeserializeOwned;

use super::parents::{Names, Parent};
use crate::object::{self, GroupKind, LiveRef, ObjectId, ResourceKind, Scope, Uid};

/// Another parent that a parent names in its spec, as it is written there. Naming nothing that can exist is allowed, and
/// reported.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Dependency {
    /// Its kind.
    pub kind: GroupKind,
    /// Its namespace; `None` for a cluster-scoped kind.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
}

impl Dependency {
    /// A parent of kind `K`.
    #[must_use]
    pub fn on<K: Resource<DynamicType = ()>>(namespace: Option<String>, name: impl Into<String>) -> Self {
        Self { kind: GroupKind::of::<K>(), namespace, name: name.into() }
    }

    /// A parent of any kind.
    #[must_use]
    pub fn new(kind: GroupKind, namespace: Option<String>, name: impl Into<String>) -> Self {
        Self { kind, namespace, name: name.into() }
    }

    /// The identity it names.
    ///
    /// # Errors
    /// [`object::Error`] if nothing can have it.
    pub fn id(&self) -> Result<ObjectId, object::Error> {
        ObjectId::new(&self.kind.group, &self.kind.kind, self.namespace.as_deref(), &self.name)
    }
}

impl fmt::Display for Dependency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.id() {
            Ok(id) => id.fmt(f),
            Err(_) => write!(f, "{} {:?}", self.kind, self.name.chars().take(80).collect::<String>()),
        }
    }
}

type DependsOn<K> = Arc<dyn Fn(&K) -> Vec<Dependency> + Send + Sync>;

/// A kind of parents that take part in a gate: how to read what each depends on.
pub struct ParentKind<K> {
    depends_on: DependsOn<K>,
    mark: Mark,
    kind: PhantomData<fn() -> K>,
}

/// Which parents of a kind may have created something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Mark {
    /// Those with the custodian's second finalizer.
    #[default]
    Applied,
    /// Those with this finalizer.
    Finalizer(String),
    /// All.
    Any,
}

impl<K> fmt::Debug for ParentKind<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParentKind").field("kind", &type_name::<K>()).field("mark", &self.mark).finish_non_exhaustive()
    }
}

impl<K> ParentKind<K>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
{
    /// Parents of kind `K`, which name others as `depends_on` says. A kind that names nothing can be named all the same.
    ///
    /// A [`Custodian`](crate::custodian::Custodian) of the gate's manager takes care of them: a parent has created something
    /// only if it carries [`Manager::applied_finalizer`](crate::manager::Manager::applied_finalizer).
    #[must_use]
    pub fn new(depends_on: impl Fn(&K) -> Vec<Dependency> + Send + Sync + 'static) -> Self {
        Self { depends_on: Arc::new(depends_on), mark: Mark::Applied, kind: PhantomData }
    }

    /// Parents that have created something only if they carry this finalizer: put it on, and read it back, before asking
    /// [`Gate::may_create`](super::Gate::may_create).
    #[must_use]
    pub fn marked_by(mut self, finalizer: impl Into<String>) -> Self {
        self.mark = Mark::Finalizer(finalizer.into());
        self
    }

    /// Parents that may have created something from the moment they exist. A parent that is created while what it names is
    /// being deleted can then block it.
    #[must_use]
    pub fn unmarked(mut self) -> Self {
        self.mark = Mark::Any;
        self
    }

    pub(super) fn erase(self, applied: &str) -> Reader {
        let depends_on = Arc::clone(&self.depends_on);
        let read = move |object: DynamicObject| {
            let value = serde_json::to_value(object).ok()?;
            Some(depends_on(&serde_json::from_value::<K>(value).ok()?))
        };
        let cluster = TypeId::of::<K::Scope>() == TypeId::of::<ClusterResourceScope>();
        Reader {
            resource: ResourceKind::of::<K>(if cluster { Scope::Cluster } else { Scope::Namespaced }),
            mark: match self.mark {
                Mark::Applied => Some(applied.to_owned()),
                Mark::Finalizer(name) => Some(name),
                Mark::Any => None,
            },
            typed: Arc::new(self.depends_on),
            read: Arc::new(read),
        }
    }
}

/// [`ParentKind`], whatever the kind.
#[derive(Clone)]
pub(super) struct Reader {
    pub(super) resource: ResourceKind,
    /// The finalizer without which a parent has created nothing.
    pub(super) mark: Option<String>,
    /// A `DependsOn<K>`.
    typed: Arc<dyn Any + Send + Sync>,
    read: Arc<dyn Fn(DynamicObject) -> Option<Vec<Dependency>> + Send + Sync>,
}

impl Reader {
    /// What a parent of kind `K` names; `None` if this is the reader of another type.
    pub(super) fn typed<K: 'static>(&self, parent: &K) -> Option<Vec<Dependency>> {
        self.typed.downcast_ref::<DependsOn<K>>().map(|depends_on| depends_on(parent))
    }

    /// The parent that an object is; `None` if it has no identity.
    pub(super) fn parent(&self, object: DynamicObject) -> Option<Parent> {
        let meta = &object.metadata;
        let this = LiveRef::new(ObjectId::from_meta(&self.resource.group_kind(), meta).ok()?, Uid::of(meta)?);
        let deleting = meta.deletion_timestamp.as_ref().map(|time| time.0);
        let carries = |mark: &String| meta.finalizers.iter().flatten().any(|f| f == mark);
        let marked = self.mark.as_ref().is_none_or(carries);
        let ready = is_ready(&object);
        let names = match (self.read)(object) {
            Some(named) => Names::Read(named.iter().filter_map(|d| d.id().ok()).filter(|id| *id != this.id).collect()),
            None => Names::Unreadable,
        };
        Some(Parent { this, names, deleting, marked, ready })
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("resource", &self.resource).field("mark", &self.mark).finish_non_exhaustive()
    }
}

/// Whether condition `Ready` is `True`, as of the present generation.
fn is_ready(object: &DynamicObject) -> bool {
    let conditions = object.data.pointer("/status/conditions").and_then(|c| c.as_array());
    conditions.into_iter().flatten().any(|condition| {
        let is = |field: &str, value: &str| condition.get(field).and_then(|v| v.as_str()) == Some(value);
        let observed = condition.get("observedGeneration").and_then(serde_json::Value::as_i64);
        let current = observed.is_none_or(|observed| object.metadata.generation.is_none_or(|now| observed >= now));
        is("type", "Ready") && is("status", "True") && current
    })
}
