//! The gate without a cluster.

mod interleavings;
mod listing;
mod opening;
mod parents;
mod requests;
mod watch;

use k8s_openapi::{api::core::v1::ConfigMap, jiff::Timestamp};

use super::{
    BlockPolicy, ParentKind,
    dependency::Reader,
    parents::{Names, Parent, Parents, View},
};
use crate::object::{LiveRef, ObjectId, Uid};

/// Parents are ConfigMaps here; what they name is told by the tests.
fn reader() -> Reader {
    ParentKind::<ConfigMap>::new(|_| Vec::new()).erase("ours.example.com/applied")
}

/// `a`, or `namespace/a`.
fn id(name: &str) -> ObjectId {
    let (namespace, name) = name.split_once('/').unwrap_or(("n", name));
    ObjectId::new("", "ConfigMap", Some(namespace), name).unwrap()
}

fn live(name: &str) -> LiveRef {
    LiveRef::new(id(name), Uid::new(format!("uid-{name}")).unwrap())
}

/// A parent that lives and may have created something.
fn parent(name: &str, names: &[&str]) -> Parent {
    let names = Names::Read(names.iter().map(|n| id(n)).collect());
    Parent { this: live(name), names, deleting: None, marked: true, ready: false }
}

fn deleting(parent: Parent) -> Parent {
    Parent { deleting: Some(Timestamp::UNIX_EPOCH), ..parent }
}

fn unmarked(parent: Parent) -> Parent {
    Parent { marked: false, ..parent }
}

fn all(parents: impl IntoIterator<Item = Parent>) -> Parents {
    let mut all = Parents::default();
    parents.into_iter().for_each(|parent| drop(all.put(parent)));
    all
}

/// Names of those that block `name`.
fn blockers(parents: &Parents, name: &str, policy: &BlockPolicy, passed: &[&str]) -> Vec<String> {
    let (this, passed) = (live(name), passed.iter().map(|n| live(n)).collect());
    let view = View { parent: &this, policy, passed: &passed };
    parents.blockers(&view).iter().map(|p| p.this.id.name().to_owned()).collect()
}
