//! Which objects a webhook configuration covers.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    Edges, Manifest, ManifestSet, Rule,
    calls::{ADMISSION, CONFIGURATIONS},
    selector::{self, Labels, Selects},
    set::{list, text},
};
use crate::object::ObjectId;

/// An object that a webhook configuration covers depends on that configuration.
///
/// It is created after it, so that the webhook sees it, and deleted before it, so that what the webhook guards is
/// guarded to the end: it may be there to refuse the DELETE, and whoever takes a finalizer off sends an UPDATE. So rules
/// for CREATE, UPDATE and DELETE count, and those for CONNECT, or for subresources alone, do not. A selector that cannot be
/// decided, because it asks for labels of a Namespace outside of the set, and match conditions are taken to cover the
/// object. Objects that configure admission are never sent to webhooks.
///
/// What the webhook's own workload needs cannot wait for it: there, [`AnsweredBy`](super::AnsweredBy) ranks higher and
/// the edge is given up.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct CoveredByWebhook;

impl Rule for CoveredByWebhook {
    fn name(&self) -> &'static str {
        "covered-by-webhook"
    }

    fn rank(&self) -> u16 {
        300
    }

    fn infer(&self, set: &ManifestSet<'_>, edges: &mut Edges<'_>) {
        let namespaces = Namespaces::of(set);
        for configuration in CONFIGURATIONS.into_iter().flat_map(|kind| set.of_kind(ADMISSION, kind)) {
            let webhooks: Vec<Webhook<'_>> = configuration.list("/webhooks").map(Webhook::read).collect();
            // Mostly a webhook names a few groups, and then only their objects are looked at.
            let mut covered: BTreeMap<&ObjectId, &str> = BTreeMap::new();
            for webhook in &webhooks {
                for object in webhook.candidates(set).filter(|object| object.id.group() != ADMISSION) {
                    if !covered.contains_key(object.id) && webhook.covers(object, set, &namespaces) {
                        covered.insert(object.id, webhook.name);
                    }
                }
            }
            let mut by_name: BTreeMap<&str, Vec<&ObjectId>> = BTreeMap::new();
            covered.into_iter().for_each(|(id, name)| by_name.entry(name).or_default().push(id));
            for (name, objects) in by_name {
                edges.prefer_all(objects, configuration.id, format!("its webhook {name:?} covers it"));
            }
        }
    }
}

/// The labels of each Namespace that objects of the set are in.
struct Namespaces<'a>(BTreeMap<&'a str, (BTreeMap<String, String>, bool)>);

impl<'a> Namespaces<'a> {
    fn of(set: &ManifestSet<'a>) -> Self {
        let mut labels = BTreeMap::new();
        for namespace in set.iter().filter_map(|m| m.id.namespace()) {
            labels.entry(namespace).or_insert_with(|| {
                let manifest = set.named("", "Namespace", None, namespace);
                (with_name(manifest, namespace), manifest.is_some())
            });
        }
        Self(labels)
    }

    fn labels(&self, namespace: &str) -> Option<Labels<'_>> {
        self.0.get(namespace).map(|(map, known)| if *known { Labels::All(map) } else { Labels::AtLeast(map) })
    }
}

/// The labels of a Namespace, with the one that the API server sets on each.
fn with_name(manifest: Option<Manifest<'_>>, name: &str) -> BTreeMap<String, String> {
    let mut labels = manifest.map(|m| m.labels().clone()).unwrap_or_default();
    labels.insert("kubernetes.io/metadata.name".to_owned(), name.to_owned());
    labels
}

/// One webhook of a configuration.
struct Webhook<'a> {
    name: &'a str,
    value: &'a Value,
    rules: Vec<&'a Value>,
}

impl<'a> Webhook<'a> {
    fn read(value: &'a Value) -> Self {
        let rules = list(value, "/rules").filter(|rule| has(rule, "/operations", &["*", "CREATE", "UPDATE", "DELETE"]));
        Self { name: text(value, "/name").unwrap_or_default(), value, rules: rules.collect() }
    }

    /// Objects of the groups that its rules name.
    fn candidates<'m>(&self, set: &ManifestSet<'m>) -> impl Iterator<Item = Manifest<'m>> {
        let mut groups: Vec<&str> =
            self.rules.iter().flat_map(|rule| list(rule, "/apiGroups")).filter_map(Value::as_str).collect();
        groups.sort_unstable();
        groups.dedup();
        let all = groups.contains(&"*");
        let some = groups.into_iter().filter(move |_| !all).flat_map(|group| set.of_group(group));
        let found: Vec<_> = if all { set.iter().collect() } else { some.collect() };
        found.into_iter()
    }

    /// Whether it is called for `object`, as far as can be told. Versions are left out: the API server converts what is
    /// sent in another version before it asks, unless told not to.
    fn covers(&self, object: Manifest<'_>, set: &ManifestSet<'_>, namespaces: &Namespaces<'_>) -> bool {
        let matched = self.rules.iter().any(|rule| {
            let in_scope = match text(rule, "/scope").unwrap_or("*") {
                "Cluster" => object.id.namespace().is_none(),
                "Namespaced" => object.id.namespace().is_some(),
                _ => true,
            };
            in_scope && has(rule, "/apiGroups", &["*", object.id.group()]) && names(rule, &set.plural(object.id))
        });
        matched && self.selects(object, namespaces) != Selects::No
    }

    fn selects(&self, object: Manifest<'_>, namespaces: &Namespaces<'_>) -> Selects {
        let of_object = selector::read(self.value, "/objectSelector");
        let of_object = of_object.map_or(Selects::Yes, |s| selector::selects(&s, Labels::All(object.labels())));
        let Some(of_namespace) = selector::read(self.value, "/namespaceSelector") else { return of_object };
        let of_namespace = match object.id.namespace() {
            Some(namespace) => {
                namespaces.labels(namespace).map_or(Selects::Perhaps, |labels| selector::selects(&of_namespace, labels))
            }
            // A Namespace is matched itself, other objects of cluster scope always.
            None if object.id.is("", "Namespace") => {
                selector::selects(&of_namespace, Labels::All(&with_name(Some(object), object.id.name())))
            }
            None => Selects::Yes,
        };
        of_object.min(of_namespace)
    }
}

/// Whether the list at `pointer` holds one of `values`.
fn has(rule: &Value, pointer: &str, values: &[&str]) -> bool {
    list(rule, pointer).filter_map(Value::as_str).any(|item| values.contains(&item))
}

/// Whether a rule names the resource itself, not just a subresource: `foos`, `*`, and with all subresources `foos/*`,
/// `*/*`.
fn names(rule: &Value, plural: &str) -> bool {
    list(rule, "/resources").filter_map(Value::as_str).any(|item| {
        let (resource, subresource) = item.split_once('/').unwrap_or((item, ""));
        (resource == "*" || resource == plural) && matches!(subresource, "" | "*")
    })
}
