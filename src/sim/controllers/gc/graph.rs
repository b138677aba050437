//! The garbage collector's picture of who owns whom.
//!
//! Edges go by UID only. A node whose object has not been seen is *virtual*: its coordinates come from a reference and
//! may be wrong.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::sim::value::{finalizers, is_deleting, list, name, namespace, uid};

/// Where an object is, as the garbage collector believes.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Identity {
    // In the order by which alternatives are compared.
    pub(super) kind: String,
    pub(super) api_version: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
}

impl Identity {
    pub(super) fn of(object: &Value, api_version: &str, kind: &str) -> Self {
        Self {
            kind: kind.to_owned(),
            api_version: api_version.to_owned(),
            namespace: namespace(object).to_owned(),
            name: name(object).to_owned(),
            uid: uid(object).to_owned(),
        }
    }

    /// The coordinates that a reference gives, in this namespace.
    pub(super) fn referred(reference: &Reference, namespace: &str) -> Self {
        Self {
            kind: reference.kind.clone(),
            api_version: reference.api_version.clone(),
            namespace: namespace.to_owned(),
            name: reference.name.clone(),
            uid: reference.uid.clone(),
        }
    }
}

/// One owner reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) blocks: bool,
}

impl Reference {
    pub(super) fn all(object: &Value) -> Vec<Self> {
        let read = |value: &Value| {
            let text = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
            Self {
                api_version: text("apiVersion"),
                kind: text("kind"),
                name: text("name"),
                uid: text("uid"),
                blocks: value.get("blockOwnerDeletion").and_then(Value::as_bool).unwrap_or(false),
            }
        };
        list(object, "ownerReferences").iter().map(read).collect()
    }

    /// Whether it gives these coordinates, the namespace apart.
    fn points_at(&self, identity: &Identity) -> bool {
        self.api_version == identity.api_version && self.kind == identity.kind && self.name == identity.name
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    pub(super) identity: Identity,
    pub(super) owners: Vec<Reference>,
    pub(super) dependents: BTreeSet<String>,
    pub(super) is_virtual: bool,
    pub(super) being_deleted: bool,
    pub(super) deleting_dependents: bool,
}

/// What has to be done because of an event.
#[derive(Debug, Default)]
pub(super) struct Consequences {
    /// UIDs whose objects may have to go, soon.
    pub(super) delete: Vec<String>,
    /// The same, with a delay.
    pub(super) delete_later: Vec<String>,
    /// UIDs of which nothing is asked any more: they have been seen, elsewhere than was believed.
    pub(super) seen: Vec<String>,
    /// UIDs whose dependents have to be orphaned.
    pub(super) orphan: Vec<String>,
    /// Proven absent.
    pub(super) absent: Vec<Identity>,
    /// References that cross a boundary: the dependent, and the reference.
    pub(super) invalid: Vec<(Identity, Reference)>,
}

#[derive(Debug, Default)]
pub(super) struct Graph {
    nodes: BTreeMap<String, Node>,
}

/// Whether an object waits for a finalizer of the garbage collector.
fn waits_for(object: &Value, finalizer: &str) -> bool {
    is_deleting(object) && finalizers(object).contains(&finalizer)
}

impl Graph {
    pub(super) fn get(&self, uid: &str) -> Option<&Node> {
        self.nodes.get(uid)
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The dependents of a node.
    pub(super) fn dependents(&self, uid: &str) -> Vec<&Node> {
        let list = self.nodes.get(uid).map(|node| &node.dependents).into_iter().flatten();
        list.filter_map(|uid| self.nodes.get(uid)).collect()
    }

    /// Takes in that an object was added or changed.
    pub(super) fn upsert(&mut self, old: Option<&Value>, new: &Value, identity: Identity) -> Consequences {
        let mut todo = Consequences::default();
        let uid = identity.uid.clone();
        if self.nodes.get(&uid).is_some_and(|node| node.is_virtual) {
            self.observe(&identity, &mut todo);
        }
        let owners = Reference::all(new);
        match self.nodes.get(&uid) {
            None => {
                let node = Node {
                    identity,
                    owners: owners.clone(),
                    being_deleted: is_deleting(new),
                    deleting_dependents: waits_for(new, "foregroundDeletion"),
                    ..Node::default()
                };
                self.nodes.insert(uid.clone(), node);
                self.link(&uid, &owners, &mut todo);
            }
            Some(node) => {
                let known = node.owners.clone();
                let find = |list: &[Reference], uid: &str| list.iter().find(|owner| owner.uid == uid).cloned();
                let mut added = Vec::new();
                for (place, owner) in owners.iter().enumerate() {
                    // A second reference to one owner counts as added.
                    let repeated = owners[..place].iter().any(|earlier| earlier.uid == owner.uid);
                    if find(&known, &owner.uid).is_none() || repeated {
                        added.push(owner.clone());
                    }
                }
                let removed: Vec<_> =
                    known.iter().filter(|owner| find(&owners, &owner.uid).is_none()).cloned().collect();
                let unblocked = known
                    .iter()
                    .filter(|owner| owner.blocks && find(&owners, &owner.uid).is_none_or(|now| !now.blocks));
                let unblocked: Vec<_> = unblocked.map(|owner| owner.uid.clone()).collect();
                if owners != known {
                    todo.delete.extend(unblocked.into_iter().filter(|uid| self.nodes.contains_key(uid)));
                    if let Some(node) = self.nodes.get_mut(&uid) {
                        node.owners.clone_from(&owners);
                    }
                    self.link(&uid, &added, &mut todo);
                    for owner in removed {
                        if let Some(node) = self.nodes.get_mut(&owner.uid) {
                            node.dependents.remove(&uid);
                        }
                    }
                }
                if let Some(node) = self.nodes.get_mut(&uid) {
                    node.being_deleted |= is_deleting(new);
                }
            }
        }
        let begins = |finalizer| waits_for(new, finalizer) && !old.is_some_and(|old| waits_for(old, finalizer));
        if begins("orphan") {
            todo.orphan.push(uid);
        } else if begins("foregroundDeletion") {
            if let Some(node) = self.nodes.get_mut(&uid) {
                node.deleting_dependents = true;
                todo.delete.extend(node.dependents.iter().cloned());
            }
            todo.delete.push(uid);
        }
        todo
    }

    /// A virtual node's object was seen: it gets its true identity, and dependents that believe another are judged.
    fn observe(&mut self, identity: &Identity, todo: &mut Consequences) {
        let Some(node) = self.nodes.get(&identity.uid) else { return };
        let differs = node.identity != *identity;
        if differs {
            let (_, mismatching) = self.partition(&identity.uid, identity);
            for uid in &mismatching {
                let Some(dependent) = self.nodes.get(uid) else { continue };
                let crosses = !identity.namespace.is_empty() && dependent.identity.namespace != identity.namespace;
                if crosses && let Some(owner) = dependent.owners.iter().find(|owner| owner.uid == identity.uid) {
                    todo.invalid.push((dependent.identity.clone(), owner.clone()));
                }
            }
            todo.delete.extend(mismatching);
            todo.seen.push(identity.uid.clone());
        }
        if let Some(node) = self.nodes.get_mut(&identity.uid) {
            node.is_virtual = false;
            node.identity = identity.clone();
        }
    }

    /// The dependents that believe a node to be at these coordinates, and those that believe otherwise. One with
    /// several references can be among both.
    fn partition(&self, uid: &str, identity: &Identity) -> (Vec<String>, Vec<String>) {
        let (mut matching, mut mismatching) = (Vec::new(), Vec::new());
        for dependent in self.dependents(uid) {
            let own = &dependent.identity;
            if !identity.namespace.is_empty() && own.namespace != identity.namespace {
                mismatching.push(own.uid.clone());
                continue;
            }
            let mut references = dependent.owners.iter().filter(|owner| owner.uid == identity.uid);
            if references.clone().any(|owner| owner.points_at(identity)) {
                matching.push(own.uid.clone());
            }
            if references.any(|owner| !owner.points_at(identity)) {
                mismatching.push(own.uid.clone());
            }
        }
        (matching, mismatching)
    }

    /// Links a dependent to these owners.
    fn link(&mut self, uid: &str, owners: &[Reference], todo: &mut Consequences) {
        let Some(own) = self.nodes.get(uid).map(|node| node.identity.clone()) else { return };
        let mut suspect = false;
        for owner in owners {
            match self.nodes.get_mut(&owner.uid) {
                None => {
                    let node = Node {
                        // Also for a kind of cluster scope: nothing better is known.
                        identity: Identity::referred(owner, &own.namespace),
                        dependents: BTreeSet::from([uid.to_owned()]),
                        is_virtual: true,
                        ..Node::default()
                    };
                    self.nodes.insert(owner.uid.clone(), node);
                    todo.delete.push(owner.uid.clone());
                }
                Some(node) => {
                    node.dependents.insert(uid.to_owned());
                    if suspect {
                        continue;
                    }
                    if !node.identity.namespace.is_empty() && node.identity.namespace != own.namespace {
                        if !node.is_virtual {
                            todo.invalid.push((own.clone(), owner.clone()));
                        }
                        suspect = true;
                    } else {
                        let doubtful =
                            node.identity.namespace.is_empty() && node.is_virtual && !own.namespace.is_empty();
                        suspect = !owner.points_at(&node.identity) || doubtful;
                    }
                }
            }
        }
        if suspect {
            todo.delete.push(uid.to_owned());
        }
    }

    /// Takes in that an object was deleted.
    pub(super) fn delete(&mut self, uid: &str) -> Consequences {
        let mut todo = Consequences::default();
        let Some(node) = self.nodes.remove(uid) else { return todo };
        for owner in &node.owners {
            if let Some(owner) = self.nodes.get_mut(&owner.uid) {
                owner.dependents.remove(uid);
            }
        }
        if !node.dependents.is_empty() {
            todo.absent.push(node.identity);
        }
        todo.delete.extend(node.dependents);
        let waiting = |uid: &String| self.nodes.get(uid).is_some_and(|owner| owner.deleting_dependents);
        todo.delete.extend(node.owners.into_iter().map(|owner| owner.uid).filter(waiting));
        todo
    }

    /// Takes in that a live read found no object of this UID at these coordinates.
    pub(super) fn delete_virtually(&mut self, identity: &Identity) -> Consequences {
        let Some(node) = self.nodes.get(&identity.uid) else { return Consequences::default() };
        let (is_virtual, same) = (node.is_virtual, node.identity == *identity);
        let (matching, mismatching) = self.partition(&identity.uid, identity);
        if !is_virtual && same || is_virtual && mismatching.is_empty() {
            return self.delete(&identity.uid);
        }
        let mut todo = Consequences::default();
        if !matching.is_empty() {
            todo.absent.push(identity.clone());
            todo.delete.extend(matching);
        }
        if is_virtual && same {
            // Others believe it elsewhere: that is looked at next.
            let alternative = self.alternative(identity, &mismatching);
            if let Some(node) = self.nodes.get_mut(&identity.uid) {
                node.identity = alternative;
            }
            todo.delete_later.push(identity.uid.clone());
        }
        todo
    }

    /// Where else a node may be: the next of the coordinates that dependents give, the first after the last.
    fn alternative(&self, absent: &Identity, dependents: &[String]) -> Identity {
        let mut candidates = BTreeSet::new();
        for dependent in dependents.iter().filter_map(|uid| self.nodes.get(uid)) {
            let references = dependent.owners.iter().filter(|owner| owner.uid == absent.uid);
            candidates.extend(
                references
                    .map(|owner| Identity::referred(owner, &dependent.identity.namespace))
                    .filter(|candidate| candidate != absent),
            );
        }
        let mut next =
            candidates.range(absent.clone()..).next().or_else(|| candidates.first()).cloned().unwrap_or_default();
        if absent.namespace.is_empty() && next.api_version == absent.api_version && next.kind == absent.kind {
            next.namespace.clear();
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `TestGetAlternateOwnerIdentity`: what dependents believe, what was found absent, and what is believed next.
    #[test]
    fn the_next_identity_goes_round() {
        // Kind, version, namespace, name.
        type Row<'a> = (&'a str, &'a str, &'a str, &'a str);
        let identity = |(kind, api_version, namespace, name): Row<'_>| Identity {
            kind: kind.to_owned(),
            api_version: api_version.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: "owner".to_owned(),
        };
        let (child1, child2) = (("Child", "v1", "ns1", "child"), ("Child", "v2", "ns1", "child"));
        let (other, elsewhere) = (("Other", "v1", "ns1", "child"), ("Child", "v1", "ns2", "child"));
        let (named, bare) = (("Child", "v1", "ns1", "name"), ("Child", "v1", "", "child"));
        let cases: &[(&[Row<'_>], Row<'_>, Row<'_>)] = &[
            (&[child1, child2], child1, child2),
            (&[child1, child2], child2, child1),
            (&[child1, child2, other], child2, other),
            (&[child1, child2, other], other, child1),
            (&[child1, elsewhere], child1, elsewhere),
            (&[child1, elsewhere], elsewhere, child1),
            (&[child1, named], child1, named),
            (&[child1, named], named, child1),
            (&[child2], child1, child2),
            (&[bare, child1], bare, bare),
            (&[bare, named], bare, ("Child", "v1", "", "name")),
            (&[bare, child2], bare, child2),
        ];
        for (believed, absent, expected) in cases {
            let mut graph = Graph::default();
            let mut dependents = Vec::new();
            for (number, row) in believed.iter().enumerate() {
                let owner = identity(*row);
                let uid = format!("dependent-{number}");
                let reference = Reference {
                    api_version: owner.api_version,
                    kind: owner.kind,
                    name: owner.name,
                    uid: owner.uid,
                    blocks: false,
                };
                let place = Identity { namespace: owner.namespace, uid: uid.clone(), ..Identity::default() };
                graph.nodes.insert(uid.clone(), Node { identity: place, owners: vec![reference], ..Node::default() });
                dependents.push(uid);
            }
            let next = graph.alternative(&identity(*absent), &dependents);
            assert_eq!(next, identity(*expected), "{believed:?} {absent:?}");
        }
    }
}
